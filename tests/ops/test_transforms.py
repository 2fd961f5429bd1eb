"""Kernels in odd surroundings: torch's defaults, few threads, other modes, many gradients at once, axes of size one."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import normscope as ns
from normscope.blocks.activations import relu2
from normscope.errors import ConfigError
from normscope.ops import kernel_mode
from normscope.ops.activations import activate
from normscope.ops.cross_entropy import cross_entropy
from normscope.ops.kernel_mode import reference_kernels
from tests.pairs import chiefly
from tests.support import randn, random_tokens, real_tokens


def single(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed, dtype=torch.float32)


def of_layer(make: Callable[[], nn.Module], *shape: int) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        layer, x = make(), single(*shape).requires_grad_()
        y = layer(x)
        return [y, *torch.autograd.grad(y, [x, *layer.parameters()], single(*shape, seed=1))]

    return run


def loss() -> list[Tensor]:
    logits = single(50, 65).requires_grad_()
    value = cross_entropy(logits, random_tokens(65, 50), 15.0)
    return [value, *torch.autograd.grad(value, logits)]


def swiglu() -> list[Tensor]:
    gate, up = single(40, 96).requires_grad_(), single(40, 96, seed=1)
    y = activate("swiglu", gate, up)
    return [y, *torch.autograd.grad(y.sum(), gate)]


WORKS: dict[str, Callable[[], list[Tensor]]] = {
    "layer": of_layer(lambda: ns.LayerNorm(96, device="cpu", dtype=torch.float32), 40, 96),
    "layer-long": of_layer(lambda: ns.LayerNorm(9000, device="cpu", dtype=torch.float32), 3, 9000),
    "rms-plain": of_layer(lambda: ns.RMSNorm(96, elementwise_affine=False), 40, 96),
    "group": of_layer(lambda: ns.GroupNorm(4, 8, device="cpu", dtype=torch.float32), 3, 8, 9, 9),
    "group-plain": of_layer(lambda: ns.GroupNorm(4, 8, affine=False), 3, 8, 9, 9),
    "batch-of-tokens": of_layer(lambda: ns.BatchNorm("[b s] d", d=8, device="cpu", dtype=torch.float32), 3, 20, 8),
    "loss": loss,
    "swiglu": swiglu,
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WORKS)
def test_torchs_default_type_does_not_matter(name: str, dtype: torch.dtype) -> None:
    expected = WORKS[name]()
    with default_dtype(dtype):
        found = WORKS[name]()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_torchs_default_device_does_not_matter() -> None:
    norm, x = ns.LayerNorm(77), single(4, 77)
    with torch.device("meta"):
        y = norm(x)
    assert torch.equal(y, norm(x))


@pytest.mark.exhaustive  # a new process
@pytest.mark.parametrize("limit", chiefly(["OMP_THREAD_LIMIT=1"], ["OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"]))
def test_fewer_threads_than_were_asked_for(limit: str) -> None:
    """OpenMP may give fewer: then some take several parts, and none is left out."""
    ns.LayerNorm(512)(torch.zeros(512, 512))  # compiled here, where no other worker of pytest compiles it, too
    code = """
import torch, normscope
torch.set_num_threads(4)
x = torch.randn(512, 512)
print(torch.allclose(normscope.LayerNorm(512)(x), torch.nn.functional.layer_norm(x, (512,)), atol=1e-5))
"""
    name, value = limit.split("=")
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, env={**os.environ, name: value})
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ns.GroupNorm(1, 1), (8, 1, 7)),
        (lambda: ns.InstanceNorm2d(1, affine=True), (8, 1, 5, 5)),
        (lambda: ns.BatchNorm2d(1), (8, 1, 5, 5)),
        (lambda: ns.Norm("n [c h w]", affine="c", c=1), (2, 1, 12, 12)),
        (lambda: ns.Norm("b [s] d", affine="d", d=1), (2, 70, 1)),
        (lambda: ns.Norm("b s [d]", affine="s", s=1), (2, 1, 70)),
    ],
)
def test_a_gain_of_one_number(make: Callable[[], ns.Norm], shape: tuple[int, ...]) -> None:
    def scaled() -> nn.Module:
        norm = make()
        assert norm.weight is not None
        nn.init.constant_(norm.weight, 1.7)
        return norm

    fused = of_layer(scaled, *shape)()
    with reference_kernels():
        steps = of_layer(scaled, *shape)()
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_mask_over_an_axis_beside_one_of_size_one() -> None:
    for norm, shape, mask in (
        (ns.Norm("b [s] d"), (2, 4, 1), real_tokens([2, 3], 4)),
        (ns.Norm("b [s] d", statistic="rms"), (2, 1, 3), torch.tensor([[False], [True]])),
    ):
        x = single(*shape)
        y = norm(x, mask)
        with reference_kernels():
            assert torch.equal(y, norm(x, mask))


@pytest.mark.parametrize("layer", [ns.LayerNorm(8), ns.RMSNorm(8), ns.GroupNorm(2, 8), ns.BatchNorm1d(8), relu2])
def test_many_gradients_at_once(layer: Callable[[Tensor], Tensor]) -> None:
    x = single(5, 8)
    at_once = torch.autograd.functional.jacobian(layer, x, vectorize=True)
    torch.testing.assert_close(at_once, torch.autograd.functional.jacobian(layer, x), rtol=1e-5, atol=1e-6)
    assert kernel_mode._enabled


def test_a_counter_of_operations_sees_torchs_own() -> None:
    logits, targets = single(3, 5).requires_grad_(), torch.tensor([1, 2, 3])

    def second() -> Tensor:
        (first,) = torch.autograd.grad(cross_entropy(logits, targets), logits, create_graph=True)
        return torch.autograd.grad(first.square().sum(), logits)[0]

    with FlopCounterMode(display=False):
        counted = second()
    torch.testing.assert_close(counted, second())
    assert counted.any()


@pytest.mark.parametrize("net", [ns.BatchNorm2d(8), ns.BatchNorm2d(8).eval(), ns.GroupNorm(4, 8)])
def test_export_for_any_batch(net: nn.Module) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(net, (single(4, 8, 5, 5),), dynamic_shapes=({0: batch},))
    x = single(7, 8, 5, 5)
    torch.testing.assert_close(exported.module()(x), net(x))


def test_threads_that_want_only_the_steps_do_not_keep_them_on() -> None:
    first, second = threading.Event(), threading.Event()

    def hold() -> None:
        with reference_kernels():
            first.set()
            second.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    first.wait(10)
    with reference_kernels():
        second.set()
        other.join()
        assert kernel_mode.select_backend(single(2)) == "reference"
    assert kernel_mode.select_backend(single(2)) == "fused"


def test_infinite_gains_and_inputs() -> None:
    norm, peer, x = ns.RMSNorm(70), nn.RMSNorm(70), single(3, 70)
    for layer in (norm, peer):
        with torch.no_grad():
            layer.weight[3] = torch.inf
    assert torch.equal(norm(x).isinf(), peer(x).isinf())
    rms = ns.Norm("b [s] d", statistic="rms")
    x = single(2, 5, 3)
    x[0, 0, 0] = torch.inf
    y = rms(x)
    with reference_kernels():
        assert torch.equal(y.isnan(), rms(x).isnan())


def test_a_setting_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCOPE_KERNELS", "off")
    with pytest.raises(ConfigError, match="invalid environment variable NORMSCOPE_KERNELS='off'; choose one of"):
        kernel_mode._forced_by_environment()
