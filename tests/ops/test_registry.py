"""The choice of an implementation for each device, dtype and shape."""

import copy
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import normscope as ns
from normscope.blocks.norm.checks import NormState
from normscope.blocks.norm.functional import normalize
from normscope.errors import ConfigError, ShapeError
from normscope.ops import registry
from normscope.ops.cross_entropy import cross_entropy
from normscope.ops.kernel_mode import Implementation, use_kernels
from normscope.ops.norm.statistic import Statistic


def chosen(monkeypatch: pytest.MonkeyPatch, rule: str) -> list[str]:
    """The choices that a rule makes from now on."""
    found: list[str] = []
    choose: Callable[..., str] = getattr(registry, rule)

    def recording(*args: object) -> str:
        found.append(choose(*args))
        return found[-1]

    monkeypatch.setattr(registry, rule, recording)
    return found


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "LayerNorm": (lambda: ns.LayerNorm(8), (2, 3, 8), "choose_norm"),
    "RMSNorm": (lambda: ns.RMSNorm(8), (2, 3, 8), "choose_norm"),
    "GroupNorm": (lambda: ns.GroupNorm(2, 8), (2, 8, 5, 5), "choose_norm"),
    "InstanceNorm": (lambda: ns.InstanceNorm2d(8, affine=True), (2, 8, 5, 5), "choose_norm"),
    "BatchNorm": (lambda: ns.BatchNorm2d(8, track_running_stats=False), (2, 8, 5, 5), "choose_norm"),
    "BatchNorm in eval mode": (lambda: ns.BatchNorm2d(8).eval(), (2, 8, 5, 5), "choose_tracked_norm"),
}


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("name", LAYERS)
def test_on_other_devices_norms_are_torchs(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such device here: fake tensors have the device, the dtype and the shape, and no values."""
    make, shape, rule = LAYERS[name]
    choices = chosen(monkeypatch, rule)
    calls: list[str] = []

    def recording(name: str) -> Callable[..., Tensor]:
        def run(x: Tensor, *_: object, **__: object) -> Tensor:
            calls.append(name)
            return x

        return run

    for function in ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"):
        monkeypatch.setattr(torch if function == "layer_norm" else torch.nn.functional, function, recording(function))
    with FakeTensorMode(), torch.no_grad():
        with torch.device(device):
            layer, x = make(), torch.empty(shape)
        y = layer(x)
    assert y.device.type == device
    assert choices == ["torch"]
    wanted = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm", "GroupNorm": "group_norm"}
    assert calls == [wanted.get(name, "instance_norm" if name == "InstanceNorm" else "batch_norm")]


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_on_other_devices_a_mask_and_other_dtypes_take_the_reference(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = chosen(monkeypatch, "choose_norm")
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 3, 8, device=device)
        ns.LayerNorm(8, device=device)(x, torch.ones(2, 3, dtype=torch.bool, device=device))
        ns.LayerNorm(8, device=device)(x.bfloat16())
    assert choices == ["reference", "reference"]


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_on_other_devices_attention_and_loss_are_torchs(device: str) -> None:
    with FakeTensorMode(), torch.no_grad():
        q, logits = torch.empty(2, 16, 4, 8, device=device), torch.empty(6, 9, device=device)
        targets = torch.zeros(6, dtype=torch.int64, device=device)
        assert registry.choose_attention(q, q, q, True) == "torch"
        assert registry.choose_cross_entropy(logits, targets) == "torch"
        assert registry.choose_activation(q, None) == registry.choose_moments(q) == "reference"
        assert cross_entropy(logits, targets).shape == ()


def test_the_choice_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = chosen(monkeypatch, "choose_norm")
    ns.LayerNorm(8)(torch.randn(2, 8))
    ns.LayerNorm(8, dtype=torch.float64)(torch.randn(2, 8, dtype=torch.float64))
    ns.GroupNorm(2, 8)(torch.randn(2, 8, 5, 5))
    with use_kernels("fused"):
        ns.LayerNorm(16)(torch.randn(2, 16))
    with use_kernels("torch"):
        ns.LayerNorm(8)(torch.randn(2, 8))
    with use_kernels("reference"):
        ns.LayerNorm(8)(torch.randn(2, 8))
    assert choices == ["fused", "reference", "fused", "fused", "torch", "reference"]


SMALL_NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[str, str]]] = {
    # The layer, the shape, and the choice in training and without gradients.
    "LayerNorm of 16": (lambda: ns.LayerNorm(16), (5, 16), ("torch", "torch")),
    "LayerNorm of 24": (lambda: ns.LayerNorm(24), (5, 24), ("fused", "torch")),
    "LayerNorm, small": (lambda: ns.LayerNorm(64), (3, 11, 64), ("fused", "torch")),
    "LayerNorm, large": (lambda: ns.LayerNorm(128), (256, 128), ("fused", "fused")),
    "LayerNorm, c h w": (lambda: ns.LayerNorm((4, 4, 4)), (3, 4, 4, 4), ("fused", "torch")),
    "LayerNorm, plain": (lambda: ns.LayerNorm(24, elementwise_affine=False), (5, 24), ("torch", "torch")),
    "RMSNorm": (lambda: ns.RMSNorm(16), (5, 16), ("fused", "fused")),
    "GroupNorm": (lambda: ns.GroupNorm(2, 8), (7, 8, 24, 24), ("fused", "torch")),
    "GroupNorm, large": (lambda: ns.GroupNorm(2, 8), (20, 8, 50, 50), ("fused", "torch")),
    "GroupNorm of text": (lambda: ns.Norm("b s (g [d])", affine="(g d)", g=2, d=8), (3, 5, 16), ("fused", "torch")),
    "InstanceNorm": (lambda: ns.InstanceNorm2d(8), (2, 8, 9, 9), ("torch", "torch")),
    "InstanceNorm, wide": (lambda: ns.InstanceNorm2d(2), (2, 2, 40, 40), ("torch", "torch")),
    "InstanceNorm, gain": (lambda: ns.InstanceNorm2d(8, affine=True), (2, 8, 9, 9), ("fused", "fused")),
    "BatchNorm": (lambda: ns.BatchNorm2d(8), (7, 8, 24, 24), ("torch", "torch")),
    "BatchNorm, large": (lambda: ns.BatchNorm2d(8), (20, 8, 50, 50), ("reference", "torch")),
    "BatchNorm of (n, c)": (lambda: ns.BatchNorm1d(8), (30, 8), ("reference", "torch")),
    "BatchNorm, stateless": (lambda: ns.BatchNorm2d(8, track_running_stats=False), (7, 8, 6, 6), ("torch", "torch")),
}


@pytest.mark.parametrize("name", SMALL_NORMS)
def test_where_torch_is_faster_and_its_bits_are_stable_it_is_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every call gives the same, with any number of threads: the first, which chooses, and the short ones after."""
    make, shape, wanted = SMALL_NORMS[name]
    tracked = isinstance(make(), ns.BatchNorm) and name != "BatchNorm, stateless"
    choices = chosen(monkeypatch, "choose_batch_norm" if tracked else "choose_norm")
    for needs_grad, choice in zip((True, False), wanted, strict=True):
        results = []
        before = torch.get_num_threads()
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results += _two_steps(make, shape, needs_grad)
        torch.set_num_threads(before)
        assert set(choices) == {choice}
        choices.clear()
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def _two_steps(make: Callable[[], nn.Module], shape: tuple[int, ...], needs_grad: bool) -> list[list[Tensor]]:
    """The result of the first call and of the second, with all gradients and running statistics."""
    rng, found = torch.Generator().manual_seed(0), []
    x, g = torch.randn(shape, generator=rng), torch.randn(shape, generator=rng)
    gains = [torch.randn(p.shape, generator=rng) for p in make().parameters()]
    layer = make().train(needs_grad)
    with torch.no_grad():
        for parameter, gain in zip(layer.parameters(), gains, strict=True):
            parameter.copy_(gain)
    state = copy.deepcopy(layer.state_dict())
    for _ in range(2):
        layer.load_state_dict(state)
        if needs_grad:
            leaf = x.clone().requires_grad_()
            y = layer(leaf)
            found.append([y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], g)])
        else:
            with torch.no_grad():
                found.append([layer(x)])
        found[-1] += [buffer.clone() for buffer in layer.buffers()]
    return found


def test_a_short_call_sees_what_has_changed() -> None:
    """A gain of another shape, another eps, a parametrized gain: the second call does not repeat the first."""
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    for change in (
        lambda norm: setattr(norm, "eps", 0.5),
        lambda norm: norm.weight.data.mul_(3),
        lambda norm: nn.utils.parametrizations.weight_norm(norm, dim=-1),
    ):
        norm, peer = ns.LayerNorm(24), nn.LayerNorm(24)
        norm(x)
        change(norm)
        change(peer)
        torch.testing.assert_close(norm(x), peer(x))
    norm = ns.LayerNorm(24)
    norm(x)
    norm.weight = nn.Parameter(torch.ones(7))
    with pytest.raises(ShapeError, match="was made for a weight"):
        norm(x)


@pytest.mark.parametrize("name", ["LayerNorm of 16", "BatchNorm, stateless", "LayerNorm, plain"])
def test_derivatives_through_torchs_kernels(name: str) -> None:
    """Second derivatives, and gradients of many outputs at once, are those of the reference."""
    make, shape, _ = SMALL_NORMS[name]
    layer, x = make(), torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def second() -> tuple[Tensor, ...]:
        leaves = [x, *layer.parameters()]
        first = torch.autograd.grad(layer(x), leaves, g, create_graph=True)
        return torch.autograd.grad(first[0].square().sum(), [x])

    def batched() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), [x, *layer.parameters()], torch.stack([g, g * 2]), is_grads_batched=True)

    for derivative in (second, batched):
        derivative()
        found = derivative()
        with use_kernels("reference"):
            expected = derivative()
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


MEAN_ABS = Statistic(
    "mean-abs", centers=False, formula="x / (mean(|x|) + eps)", of_each=Tensor.abs, factor=lambda m, eps: 1 / (m + eps)
)


def test_a_third_statistic_runs_by_its_own_formula() -> None:
    """In every mode and over every scope; it must not run as rms."""
    for scope, dims, shape in (
        ("... [d]", -1, (3, 8)),
        ("n (g [c]) [...]", (2, 3), (2, 2, 4, 5)),
        ("[n] c", 0, (6, 4)),
    ):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        given = x.reshape(2, 8, 5) if scope.startswith("n") else x
        expected = (x / (x.abs().mean(dims, keepdim=True) + 1e-3)).reshape(given.shape)
        sizes: dict[str, Any] = {"g": 2} if scope.startswith("n") else {}
        for mode in get_args(Implementation):
            with use_kernels(mode):
                norm = ns.Norm(scope, statistic=MEAN_ABS, eps=1e-3, **sizes)
                torch.testing.assert_close(norm(given), expected)
                torch.testing.assert_close(normalize(given, scope, statistic=MEAN_ABS, eps=1e-3, **sizes), expected)
        norm = ns.Norm(scope, statistic=MEAN_ABS, eps=1e-3, **sizes)
        for _ in range(2):  # from the second call of a shape on, norms with kernels take a shorter way
            torch.testing.assert_close(norm(given), expected)


def test_a_copied_norm_takes_the_same_implementation() -> None:
    norm, x = ns.GroupNorm(2, 8), torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(copy.deepcopy(norm)(x), norm(x))


def test_a_third_statistic_cannot_be_tracked() -> None:
    for state in get_args(NormState):
        with pytest.raises(ConfigError, match="cannot be tracked"):
            ns.Norm("[n] c", statistic=MEAN_ABS, state=state, c=4)
