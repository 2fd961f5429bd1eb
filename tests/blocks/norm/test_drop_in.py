"""A drop-in is torch's layer in every way that other code looks at: its type, attributes, old checkpoints and tools."""

import inspect

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.swa_utils import update_bn

import normscope as ns
from tests.blocks.norm.cases import Case, close, close_states, every_case, mostly_on, randn

pytestmark = mostly_on("fused")


@every_case
def test_isinstance_and_attributes(case: Case) -> None:
    """Weight-decay filters and converters ask isinstance, and then read the attributes that torch documents."""
    ours, peer = case.pair()
    if case.name not in ("batch", "instance"):  # these take every rank, which no single layer of torch's does
        assert isinstance(ours, type(peer))
    names = set(getattr(peer, "__constants__", ())) | {"training"}
    assert names
    for name in names:
        assert getattr(ours, name) == getattr(peer, name), name


@every_case
def test_forward_takes_torchs_keyword(case: Case) -> None:
    ours, peer = case.pair()
    keyword = next(iter(inspect.signature(peer.forward).parameters))
    close(ours(**{keyword: case.input()}), peer(**{keyword: case.input()}), 1e-5, "output")


def test_update_bn_reaches_it() -> None:
    batches = [randn((6, 3), seed, torch.float32) for seed in range(4)]
    ours, peer = nn.Sequential(ns.BatchNorm1d(3)), nn.Sequential(nn.BatchNorm1d(3))
    for model in (ours, peer):
        update_bn(batches, model)
    close_states(ours, peer, 1e-6)
    assert ours.get_buffer("0.running_mean").any()


def test_a_converter_to_torchs_synchronised_layer_finds_it() -> None:
    ours = nn.Sequential(ns.BatchNorm2d(3, eps=1e-3))
    nn.init.constant_(ours.get_parameter("0.weight"), 2.0)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(ours)[0]
    assert isinstance(converted, nn.SyncBatchNorm)
    assert converted.eps == 1e-3
    assert converted.weight.tolist() == [2.0] * 3


def test_a_checkpoint_from_before_the_counter_loads() -> None:
    old = {name: value for name, value in nn.BatchNorm2d(3).state_dict().items() if name != "num_batches_tracked"}
    ns.BatchNorm2d(3).load_state_dict(old)


def test_running_statistics_that_are_taken_away_leave_the_batchs() -> None:
    ours, peer = ns.BatchNorm1d(3), nn.BatchNorm1d(3)
    for module in (ours, peer):
        module.running_mean = module.running_var = None
        module.eval()
    x = randn((5, 3), 1, torch.float32)
    close(ours(x), peer(x), 1e-5, "output")


@pytest.mark.parametrize("kind", ["BatchNorm1d", "InstanceNorm1d"])
def test_tracking_that_is_turned_off_on_a_finished_layer(kind: str) -> None:
    """A trick of meta-learning: BatchNorm then trains without moving its memory, InstanceNorm evaluates without it."""
    ours, peer = (getattr(library, kind)(3, track_running_stats=True) for library in (ns, nn))
    for seed, training, tracks in ((0, True, True), (1, True, False), (2, False, False), (3, False, True)):
        for module in (ours, peer):
            module.train(training).track_running_stats = tracks
        x = randn((5, 3, 4), seed, torch.float32)
        close(ours(x), peer(x), 1e-5, f"output with {training=} and {tracks=}")
        close_states(ours, peer, 1e-6)


@pytest.mark.parametrize("norm", [ns.LayerNorm(4), ns.BatchNorm2d(3), ns.PowerNorm(4)], ids=repr)
def test_every_attribute_can_be_looked_at(norm: ns.Norm) -> None:
    members = dict(inspect.getmembers(norm))
    assert members["sizes"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace() -> None:
    x = randn((2, 5, 4), 1, torch.float32)
    norm = ns.LayerNorm(4)
    close(torch.jit.trace(norm, x)(x), norm(x), 1e-6, "traced output")


def test_a_symbolic_trace() -> None:
    norm = ns.GroupNorm(2, 4, affine=False)
    x = randn((3, 4, 5), 1, torch.float32)
    graph = make_fx(lambda v: norm(v), tracing_mode="symbolic")(x)
    close(graph(x), norm(x), 1e-6, "traced output")


@pytest.mark.parametrize("norm", [ns.BatchNorm2d(4), ns.GroupNorm(2, 4), ns.InstanceNorm2d(4)], ids=repr)
def test_export_as_the_whole_program(norm: ns.Norm) -> None:
    x = randn((3, 4, 5, 5), 1, torch.float32)
    program = torch.export.export(norm.eval(), (x,))
    close(program.module()(x), norm(x), 1e-6, "exported output")


def test_num_groups_set_afterwards_is_honored() -> None:
    ours, peer, x = ns.GroupNorm(2, 12), nn.GroupNorm(2, 12), randn((3, 12, 5), 1, torch.float32)
    close(ours(x), peer(x), 1e-5, "two groups")
    ours.num_groups = peer.num_groups = 6
    close(ours(x), peer(x), 1e-5, "six groups")
    assert "g=6, c=2" in repr(ours)
    with pytest.raises(ns.NormscopeError, match="divisible"):
        ours.num_groups = 5
    assert ours.num_groups == 6


@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_normalized_shape_cannot_be_changed_without_effect(layer: type[nn.Module]) -> None:
    norm = layer(4)
    with pytest.raises(ns.NormscopeError, match="make a new layer"):
        norm.normalized_shape = (2,)  # type: ignore[assignment]
    assert norm.normalized_shape == (4,)
