"""The layers as modules: what replaces torch.nn's layer must also be made, copied, moved and loaded like it."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

import normscope as ns
from tests.blocks.norm.cases import (
    CASES_BY_NAME,
    TOLERANCE,
    Case,
    close,
    close_states,
    close_step,
    every_case,
    mostly_on,
    randn,
)
from tests.pairs import every_value

pytestmark = mostly_on("fused")

DROP_INS: list[tuple[type[nn.Module], type[nn.Module]]] = [
    (ns.LayerNorm, nn.LayerNorm),
    (ns.RMSNorm, nn.RMSNorm),
    (ns.GroupNorm, nn.GroupNorm),
    (ns.BatchNorm, nn.BatchNorm2d),
    (ns.BatchNorm1d, nn.BatchNorm1d),
    (ns.BatchNorm2d, nn.BatchNorm2d),
    (ns.BatchNorm3d, nn.BatchNorm3d),
    (ns.InstanceNorm, nn.InstanceNorm2d),
    (ns.InstanceNorm1d, nn.InstanceNorm1d),
    (ns.InstanceNorm2d, nn.InstanceNorm2d),
    (ns.InstanceNorm3d, nn.InstanceNorm3d),
]


@pytest.mark.parametrize(("ours", "peer"), DROP_INS, ids=lambda layer: f"{layer.__module__}.{layer.__name__}")
def test_constructor_takes_what_torch_takes(ours: type[nn.Module], peer: type[nn.Module]) -> None:
    mine = inspect.signature(ours.__init__).parameters
    theirs = inspect.signature(peer.__init__).parameters
    positional = [name for name, p in mine.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, (name, parameter) in enumerate(theirs.items()):
        assert name in mine
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert positional[place] == name
        if parameter.default is not parameter.empty:
            assert mine[name].default == parameter.default


@every_case
def test_state_dict_loads_both_ways(case: Case) -> None:
    ours, peer = case.pair()
    ours(case.input())  # so that the buffers hold something
    assert list(ours.state_dict()) == list(peer.state_dict())
    fresh = case.peer(*case.args, **case.kwargs)
    fresh.load_state_dict(ours.state_dict(), strict=True)
    back = case.ours(*case.args, **case.kwargs)
    back.load_state_dict(fresh.state_dict(), strict=True)
    for name, value in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], value)
    close(back.eval()(case.input()), fresh.eval()(case.input()), TOLERANCE[torch.float32], "output")


@every_case
def test_fresh_layers_are_equal(case: Case) -> None:
    ours, peer = case.ours(*case.args, **case.kwargs), case.peer(*case.args, **case.kwargs)
    for name, value in peer.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
        assert ours.state_dict()[name].dtype == value.dtype


@every_case
def test_deepcopy_is_a_second_layer(case: Case) -> None:
    ours, _ = case.pair()
    twin = copy.deepcopy(ours)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    assert torch.equal(twin.eval()(case.input()), copy.deepcopy(ours).eval()(case.input()))
    twin.train()(case.input())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name])


@every_case
def test_meta_device_then_real_memory(case: Case) -> None:
    norm = case.ours(*case.args, **case.kwargs, device="meta")
    assert all(t.is_meta for t in norm.state_dict().values())
    assert norm(torch.empty(case.shape, device="meta")).shape == case.shape
    norm = norm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.fill_(77)  # memory may hold anything
    norm.reset_parameters()
    fresh = case.ours(*case.args, **case.kwargs)
    for name, value in fresh.state_dict().items():
        assert torch.equal(norm.state_dict()[name], value)
    assert torch.equal(norm(case.input()), fresh(case.input()))


@every_case
def test_reset_running_stats_forgets(case: Case) -> None:
    ours, peer = case.pair()
    ours(case.input())
    peer(case.input())
    ours.reset_running_stats()
    if isinstance(peer, _NormBase):
        peer.reset_running_stats()
    close_states(ours, peer, 0.0)


@every_value(case=CASES_BY_NAME, move=["half", "bfloat16", "double", "to"])
def test_moving_to_another_type(case: Case, move: str) -> None:
    ours, peer = case.pair(torch.float32)
    for module in (ours, peer):
        if move == "to":
            module.to(torch.float64)
        else:
            getattr(module, move)()
    dtype = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(move, torch.float64)
    for name, value in ours.state_dict().items():
        assert value.dtype == (torch.int64 if name == "num_batches_tracked" else dtype)
    close_step(ours, peer, case.input(dtype), TOLERANCE[dtype])


@every_case
def test_repr_says_what_it_is(case: Case) -> None:
    norm = case.ours(*case.args, **case.kwargs)
    assert repr(norm).startswith(f"{type(norm).__name__}({norm.scope.text!r}")
    assert f"eps={norm.eps}" in repr(norm)


def test_a_scope_in_place_of_a_number_is_the_same_layer() -> None:
    x = torch.randn(2, 6, 4, 4, generator=torch.Generator().manual_seed(0))
    pairs: list[tuple[ns.Norm, ns.Norm]] = [
        (ns.LayerNorm([6, 4, 4]), ns.LayerNorm("n [c h w]", c=6, h=4, w=4)),
        (ns.RMSNorm(4), ns.RMSNorm("... [d]", d=4)),
        (ns.GroupNorm(2, 6), ns.GroupNorm("n (g [c]) [...]", g=2, c=3)),
        (ns.BatchNorm2d(6), ns.BatchNorm2d("[n] c [h w]", c=6)),
        (ns.InstanceNorm2d(6, affine=True), ns.InstanceNorm2d(ns.Scope.parse("n c [h w]"), affine=True, c=6)),
        (ns.PowerNorm(4), ns.PowerNorm("[n c h] w", w=4)),
    ]
    for by_number, by_scope in pairs:
        by_scope.load_state_dict(by_number.state_dict())
        assert torch.equal(by_number(x), by_scope(x))
        close_states(by_number, by_scope, 0.0)


def test_instance_norm_without_a_momentum_averages_all_batches() -> None:
    """Here we part from torch, whose InstanceNorm takes None for zero and never learns anything."""
    norm = ns.InstanceNorm1d(3, momentum=None, track_running_stats=True, dtype=torch.float64)
    batches = [randn((2, 3, 5), seed) for seed in range(3)]
    for batch in batches:
        norm(batch)
    close(norm.running_mean, torch.stack(batches).mean((0, 1, 3)), 1e-12, "running_mean")
    close(norm.running_var, torch.stack(batches).var(3).mean((0, 1)), 1e-12, "running_var")
