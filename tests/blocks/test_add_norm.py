"""Add and normalize: in one pass where that can be, and always the same numbers."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.blocks.fused_norms import add_and_normalize
from normscope.errors import ShapeError
from normscope.ops.fused import row_norm as rows
from normscope.ops.kernel_mode import reference_kernels
from tests.accuracy import assert_no_less_accurate
from tests.blocks.norm.cases import randn, scramble

SHAPE = (40, 9, 64)

NORMS: dict[str, Callable[[], ns.Norm]] = {
    "rms": lambda: ns.RMSNorm(64),
    "rms-plain": lambda: ns.RMSNorm(64, elementwise_affine=False),
    "layer": lambda: ns.LayerNorm(64),
    "scope": lambda: ns.Norm("b s [d]", statistic="rms", affine="d", d=64),
}


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every call of the kernel: whether it added."""
    found: list[bool] = []
    loop = rows.forward

    def recording(*arguments: Any) -> None:
        found.append(arguments[-1][-2])  # of its options; the last one tells of a bias
        loop(*arguments)

    monkeypatch.setattr(rows, "forward", recording)
    return found


def results(norm: nn.Module, weights: tuple[float, float] = (1.0, 1.0)) -> list[Tensor]:
    x, branch = (randn(SHAPE, seed, torch.float32).requires_grad_() for seed in (1, 2))
    total, y = add_and_normalize(x, branch, norm)
    gradients = [weight * randn(SHAPE, seed, torch.float32) for weight, seed in zip(weights, (3, 4), strict=True)]
    return [total, y, *torch.autograd.grad([total, y], [x, branch, *norm.parameters()], gradients)]


@pytest.mark.parametrize("name", NORMS)
def test_the_sum_and_its_norm(name: str, sums: list[bool]) -> None:
    norm = NORMS[name]()
    scramble(norm)
    fused = results(norm)
    assert sums == [True]
    with reference_kernels():
        steps = results(norm)
    assert torch.equal(fused[0], steps[0])
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-5)
    assert torch.equal(fused[2], fused[3])  # what flows back to the stream flows back to the branch


@pytest.mark.parametrize("used", ["sum", "norm"])
def test_only_one_of_the_two_is_used(used: str) -> None:
    norm = NORMS["rms"]()
    x, branch = (randn(SHAPE, seed, torch.float32).requires_grad_() for seed in (1, 2))

    def gradients() -> tuple[Tensor | None, ...]:
        total, y = add_and_normalize(x, branch, norm)
        wanted = [x, branch, *norm.parameters()]
        return torch.autograd.grad((total if used == "sum" else y).pow(2).sum(), wanted, allow_unused=True)

    fused = gradients()
    with reference_kernels():
        steps = gradients()
    for one, other in zip(fused, steps, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


def test_a_hook_sees_the_norm_called(sums: list[bool]) -> None:
    norm, seen = NORMS["rms"](), []
    handle = norm.register_forward_hook(lambda module, given, y: seen.append(y))
    _, y = add_and_normalize(randn(SHAPE, 1, torch.float32), randn(SHAPE, 2, torch.float32), norm)
    assert len(seen) == 1
    assert seen[0] is y
    assert sums == [False]
    handle.remove()
    add_and_normalize(randn(SHAPE, 1, torch.float32), randn(SHAPE, 2, torch.float32), norm)
    assert sums == [False, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_two_steps(dtype: torch.dtype) -> None:
    norm = NORMS["layer"]().to(dtype)
    x, branch = randn(SHAPE, 1, dtype), randn(SHAPE, 2, dtype)
    total, y = add_and_normalize(x, branch, norm)
    assert torch.equal(total, x + branch)
    assert torch.equal(y, norm(x + branch))


def test_other_norms_and_shapes(sums: list[bool]) -> None:
    batch = ns.BatchNorm("[b s] d", d=64)
    x = randn(SHAPE, 1, torch.float32)
    total, y = add_and_normalize(x, x, batch)
    assert torch.equal(total, 2 * x)
    total, y = add_and_normalize(x, x[:1], NORMS["rms"]())  # one that is spread over the batch
    assert torch.equal(total, x + x[:1])
    torch.testing.assert_close(y, nn.functional.rms_norm(total, (64,)), rtol=1e-5, atol=1e-5)
    assert sums == [False]


def test_a_gain_of_another_size_is_refused() -> None:
    norm = ns.RMSNorm(64)
    norm.weight = nn.Parameter(torch.ones(8))
    with pytest.raises(ShapeError, match="shape"):
        results(norm)


def test_second_derivatives() -> None:
    norm = NORMS["layer"]()
    scramble(norm)

    def second() -> tuple[Tensor, ...]:
        x, branch = (randn((3, 64), seed, torch.float32).requires_grad_() for seed in (1, 2))
        total, y = add_and_normalize(x, branch, norm)
        (first,) = torch.autograd.grad((y.pow(3) + total.pow(3)).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, branch, *norm.parameters()], materialize_grads=True)

    fused = second()
    with reference_kernels():
        steps = second()
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_compiled() -> None:
    norm = NORMS["rms"]()
    x, branch = randn(SHAPE, 1, torch.float32), randn(SHAPE, 2, torch.float32)
    compiled = torch.compile(add_and_normalize, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(x, branch, norm), add_and_normalize(x, branch, norm), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_gain_has_no_gradient_if_only_the_sum_is_used(compiled: bool) -> None:
    norm = NORMS["rms"]()
    x, branch = (randn(SHAPE, seed, torch.float32).requires_grad_() for seed in (1, 2))

    def double_sum(x: Tensor, branch: Tensor) -> Tensor:
        return 2 * add_and_normalize(x, branch, norm)[0]

    function = torch.compile(double_sum, fullgraph=True, backend="aot_eager") if compiled else double_sum
    function(x, branch).sum().backward()
    assert [parameter.grad for parameter in norm.parameters()] == [None] * len(list(norm.parameters()))
    for grad in (x.grad, branch.grad):
        torch.testing.assert_close(grad, torch.full(SHAPE, 2.0), rtol=0, atol=0)


@pytest.mark.parametrize("name", NORMS)
def test_double_backward_is_as_accurate_as_the_reference(name: str) -> None:
    def second(reference: bool, dtype: torch.dtype) -> list[Tensor]:
        norm = NORMS[name]()
        scramble(norm)
        norm.to(dtype)
        x, branch, a, b = (randn(SHAPE, seed, torch.float32).to(dtype) for seed in (1, 2, 3, 4))
        x.requires_grad_()
        branch.requires_grad_()
        with reference_kernels() if reference else nullcontext():
            total, y = add_and_normalize(x, branch, norm)
            loss = (total * a).sum() + (y.square() * b).sum()
            first = torch.autograd.grad(loss, [x, *norm.parameters()], create_graph=True)
            squares = torch.stack([g.square().sum() for g in first]).sum()
            return list(torch.autograd.grad(squares, [x, branch, *norm.parameters()]))

    found = second(False, torch.float32), second(True, torch.float32), second(True, torch.float64)
    for fused, plain, exact in zip(*found, strict=True):
        assert_no_less_accurate(fused, plain, exact, what=name)
