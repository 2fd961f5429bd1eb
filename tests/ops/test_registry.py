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
from normscope.errors import ConfigError
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
        monkeypatch.setattr(torch.nn.functional, function, recording(function))
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
    ns.GroupNorm(2, 8)(torch.randn(20, 8, 50, 50))
    with use_kernels("fused"):
        ns.GroupNorm(2, 8)(torch.randn(2, 8, 5, 5))
    with use_kernels("torch"):
        ns.LayerNorm(8)(torch.randn(2, 8))
    with use_kernels("reference"):
        ns.LayerNorm(8)(torch.randn(2, 8))
    assert choices == ["fused", "reference", "torch", "fused", "fused", "torch", "reference"]


def of_threads(make: Callable[[], nn.Module], x: Tensor) -> list[list[Tensor]]:
    """The result and all gradients, with one, two and four threads."""
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        layer, leaf = make(), x.clone().requires_grad_()
        y = layer(leaf)
        found.append([y, *torch.autograd.grad(y, [leaf, *layer.parameters()], x)])
    torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_where_torch_is_chosen_bits_do_not_depend_on_threads(groups: int) -> None:
    x = torch.randn(7, 8, 24, 24, generator=torch.Generator().manual_seed(0))
    with use_kernels("torch"):
        expected = of_threads(lambda: ns.GroupNorm(groups, 8), x)[0]
    one, two, four = of_threads(lambda: ns.GroupNorm(groups, 8), x)
    assert all(torch.equal(a, b) for a, b in zip(one, expected, strict=True))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(one, two, four, strict=True))


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


def test_a_copied_norm_takes_the_same_implementation() -> None:
    norm, x = ns.GroupNorm(2, 8), torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(copy.deepcopy(norm)(x), norm(x))


def test_a_third_statistic_cannot_be_tracked() -> None:
    for state in get_args(NormState):
        with pytest.raises(ConfigError, match="cannot be tracked"):
            ns.Norm("[n] c", statistic=MEAN_ABS, state=state, c=4)
