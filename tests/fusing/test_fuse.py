"""Fusing the norms of torch.nn: same values, same objects, and undo."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

import normscope
from normscope.errors import ArgumentTypeError
from normscope.ops.kernel_mode import reference_kernels
from tests.fusing.foreign import OtherNorm, rms
from tests.support import close_all, gradients, randn, scramble

TOLERANCE = 1e-5
"""Relative to 1 or to the value: a few ulps of float32, accumulated over a few layers."""


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.GroupNorm(4, 8),
        nn.Conv2d(8, 4, 3),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 6),
        nn.BatchNorm1d(6, momentum=None),
        nn.LayerNorm(6),
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convnet": (convnet, (5, 3, 6, 6)),
    "encoder": (encoder, (3, 5, 16)),
    "volumes": (lambda: nn.Sequential(nn.BatchNorm3d(4), nn.InstanceNorm3d(4), nn.RMSNorm(6)), (3, 4, 2, 3, 6)),
    "sequences": (lambda: nn.Sequential(nn.InstanceNorm1d(4), nn.RMSNorm([4, 6], eps=1e-3)), (3, 4, 6)),
}
every_model = pytest.mark.parametrize("name", MODELS)


def pair(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A model, its copy that is left alone, and an input."""
    make, shape = MODELS[name]
    model = make()
    scramble(model)
    return model, copy.deepcopy(model), randn(*shape, dtype=torch.float32)


def norms_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if "Norm" in type(module).__name__]


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """One pass forwards and backwards: everything that came of it."""
    leaf = x.clone().requires_grad_()
    model.zero_grad()
    y = model(leaf)
    y.backward(randn(*y.shape, seed=9, dtype=torch.float32))
    assert leaf.grad is not None
    found = {"y": y.detach(), "input": leaf.grad, **gradients(model)}
    return found | {name: buffer.clone() for name, buffer in model.named_buffers()}


@every_model
def test_fused_norms_match_in_train_and_eval_mode(name: str) -> None:
    model, peer, x = pair(name)
    report = normscope.fuse(model)
    assert len(report.fused) == len(norms_of(peer)) > 0
    assert report.skipped == ()
    assert all(isinstance(module, normscope.Norm) for module in norms_of(model))
    for training in (True, True, False):
        model.train(training)
        peer.train(training)
        close_all(step(model, x), step(peer, x), TOLERANCE)


@every_model
def test_a_fused_norm_keeps_its_identity_and_base_class(name: str) -> None:
    model, _, _ = pair(name)
    before = [(module, type(module)) for module in norms_of(model)]
    normscope.fuse(model)
    assert [id(module) for module in norms_of(model)] == [id(module) for module, _ in before]
    assert all(isinstance(module, kind) and type(module) is not kind for module, kind in before)


@every_model
def test_the_state_dict_keeps_names_order_and_tensors(name: str) -> None:
    model, peer, _ = pair(name)
    before = model.state_dict(keep_vars=True)
    normscope.fuse(model)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in before)
    peer.load_state_dict(model.state_dict())
    model.load_state_dict(peer.state_dict())


@every_model
def test_fuse_has_no_side_effects(name: str) -> None:
    model, _, x = pair(name)
    model.train()
    model(x).sum().backward()
    before, grads, state = copy.deepcopy(model.state_dict()), gradients(model), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    normscope.fuse(model)
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert gradients(model).keys() == grads.keys()
    assert all(torch.equal(value, grads[key]) for key, value in gradients(model).items())


@every_model
def test_undo_restores_modules_and_bits(name: str) -> None:
    model, peer, x = pair(name)
    before = [(module, type(module), set(vars(module)), list(module._buffers)) for module in model.modules()]
    report = normscope.fuse(model)
    model(x)
    peer(x)
    report.undo()
    after = [(module, type(module), set(vars(module)), list(module._buffers)) for module in model.modules()]
    assert after == before
    model.load_state_dict(peer.state_dict())  # the running statistics may differ by a rounding
    wanted = step(peer, x)
    assert all(torch.equal(value, wanted[key]) for key, value in step(model, x).items())


def test_undo_twice_does_not_affect_a_later_fuse() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    first = normscope.fuse(model)
    first.undo()
    first.undo()
    assert type(model[0]) is nn.LayerNorm
    normscope.fuse(model)
    first.undo()
    assert isinstance(model[0], normscope.LayerNorm)


def test_the_context_manager_undoes_also_after_an_error() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    with normscope.fuse(model) as report:
        assert isinstance(model[0], normscope.LayerNorm)
        assert len(report.fused) == 1
    assert type(model[0]) is nn.LayerNorm
    with pytest.raises(ZeroDivisionError), normscope.fuse(model):
        1 / 0  # noqa: B018
    assert type(model[0]) is nn.LayerNorm


def test_a_second_fuse_changes_nothing() -> None:
    model = nn.Sequential(nn.LayerNorm(8), OtherNorm(rms, "weight"))
    first = normscope.fuse(model)
    second = normscope.fuse(model)
    assert (second.fused, second.skipped) == ((), ())
    assert str(second) == "nothing to fuse"
    second.undo()
    assert isinstance(model[0], normscope.LayerNorm)
    first.undo()
    assert [type(module) for module in model] == [nn.LayerNorm, OtherNorm]


def test_an_existing_optimizer_keeps_training_the_model() -> None:
    model, peer, x = pair("encoder")
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9) for m in (model, peer)]
    normscope.fuse(model)
    for _ in range(3):
        for m, optimizer in zip((model, peer), optimizers, strict=True):
            step(m, x)
            optimizer.step()
    close_all(dict(model.named_parameters()), dict(peer.named_parameters()), TOLERANCE)
    assert not torch.equal(model.norm1.weight, pair("encoder")[1].norm1.weight)  # type: ignore[arg-type, union-attr]


def test_the_fast_path_of_transformer_encoders_reads_fused_norms() -> None:
    model, peer, x = pair("encoder")
    normscope.fuse(model)
    with torch.inference_mode():
        assert (model.eval()(x) - peer.eval()(x)).abs().max() < TOLERANCE


def test_a_shared_norm_is_fused_once_and_stays_shared() -> None:
    norm = nn.LayerNorm(8)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(nn.Linear(8, 8), norm)})
    report = normscope.fuse(model)
    assert [entry.names for entry in report.fused] == [("a", "b.1")]
    assert model["a"] is model["b"][1] is norm  # type: ignore[index]
    assert "a = b.1" in str(report)


def test_the_model_itself_may_be_a_norm() -> None:
    norm = nn.LayerNorm(8)
    report = normscope.fuse(norm)
    assert isinstance(norm, normscope.LayerNorm)
    assert "(the model)" in str(report)


def test_hooks_keep_running_and_can_be_removed() -> None:
    model, calls = nn.Sequential(nn.LayerNorm(8)), []
    handle = model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    everywhere = register_module_forward_hook(lambda *_: calls.append("anything"))
    normscope.fuse(model)
    everywhere.remove()
    assert calls == []  # the trials do not set them off
    x = randn(2, 8, dtype=torch.float32).requires_grad_()
    model(x).sum().backward()
    assert calls == ["forward", "backward"]
    handle.remove()
    model(x)
    assert calls == ["forward", "backward"]


def test_frozen_parameters_stay_frozen() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    model[0].weight.requires_grad_(False)
    normscope.fuse(model)
    model(randn(2, 8, dtype=torch.float32)).sum().backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None


def test_a_norm_whose_bias_was_removed_is_fused_without_one() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    model[0].register_parameter("bias", None)
    peer, x = copy.deepcopy(model), randn(3, 8, dtype=torch.float32)
    assert len(normscope.fuse(model).fused) == 1
    close_all(step(model, x), step(peer, x), TOLERANCE)


def as_a_subclass() -> nn.Module:
    class Twice(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    return Twice(8)


def with_another_forward() -> nn.Module:
    norm = nn.LayerNorm(8)
    norm.forward = lambda input: input  # type: ignore[method-assign]
    return norm


def with_a_parametrization() -> nn.Module:
    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    norm = nn.LayerNorm(8)
    parametrize.register_parametrization(norm, "weight", Half())
    return norm


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "subclass with a memory": (as_a_subclass, "only torch.nn's own batch and instance norm"),
    "sync": (lambda: nn.SyncBatchNorm(8), "only torch.nn's own batch and instance norm"),
    "replaced forward": (with_another_forward, "replaced on this instance"),
    "parametrization": (with_a_parametrization, "has submodules: parametrizations"),
    "float64": (lambda: nn.LayerNorm(8).double(), "float64"),
    "meta": (lambda: nn.LayerNorm(8, device="meta"), "device meta"),
    "local response": (lambda: nn.LocalResponseNorm(2), "no fused version"),
    "another momentum": (
        lambda: nn.InstanceNorm2d(4, momentum=None, track_running_stats=True),  # type: ignore[arg-type]
        "running_mean differs",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_unverified_norms_are_skipped_with_a_reason(name: str) -> None:
    make, reason = LEFT[name]
    model = nn.Sequential(make())
    kind = type(model[0])
    report = normscope.fuse(model)
    assert report.fused == ()
    assert [(entry.name, entry.old) for entry in report.skipped] == [("0", kind.__name__)]
    assert reason in report.skipped[0].reason
    assert type(model[0]) is kind


def test_nothing_is_fused_without_kernels() -> None:
    model = nn.Sequential(nn.LayerNorm(8), OtherNorm(rms, "weight"))
    with reference_kernels():
        report = normscope.fuse(model)
    assert [entry.reason for entry in report.skipped] == ["fused kernels are disabled"] * 2
    assert [type(module) for module in model] == [nn.LayerNorm, OtherNorm]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_norm_is_skipped() -> None:
    model = nn.Sequential(torch.jit.script(nn.LayerNorm(8)))
    (skipped,) = normscope.fuse(model).skipped
    assert "scripted" in skipped.reason


def test_copied_and_saved_fused_models_match() -> None:
    model, _, x = pair("convnet")
    normscope.fuse(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(twin.eval()(x), model.eval()(x))
        assert all(isinstance(module, normscope.Norm) for module in norms_of(twin))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_it_works_in_any_mode(context: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.LayerNorm(8), OtherNorm(rms, "weight"))
    with context():
        assert len(normscope.fuse(model).fused) == 2
    assert isinstance(model[0], normscope.LayerNorm)


@pytest.mark.parametrize("mistake", [None, "model", nn.Linear, [nn.LayerNorm(3)]], ids=str)
def test_fuse_refuses_what_is_not_a_model(mistake: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="fuse expects a"):
        normscope.fuse(mistake)


def test_the_report_reads_as_a_table() -> None:
    layers = [nn.ModuleDict({"norm": nn.LayerNorm(8), "up": nn.Linear(8, 8)}) for _ in range(12)]
    model = nn.ModuleDict({"layers": nn.ModuleList(layers), "last": nn.RMSNorm(8), "odd": nn.LocalResponseNorm(2)})
    report = normscope.fuse(model)
    assert str(report) == repr(report)
    assert str(report).splitlines() == [
        "fused 13 of 14 norms",
        "  LayerNorm -> normscope.LayerNorm",
        "    layers.0-11.norm  (12)",
        "  RMSNorm -> normscope.RMSNorm",
        "    last",
        "skipped 1",
        "  LocalResponseNorm: no fused version of this norm",
        "    odd",
    ]


def test_a_long_reason_is_wrapped() -> None:
    text = str(normscope.fuse(nn.SyncBatchNorm(4)))
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == 5
