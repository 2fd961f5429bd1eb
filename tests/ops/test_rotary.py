"""The fused rotary kernels: the numbers of the readable form, to the last bit the same however they are computed."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.rotary import apply_rotary, rms_norm_rotary
from tests.accuracy import assert_no_less_accurate, assert_rounded_once
from tests.ops.rotary_cases import EPS, EVERY_LOOP, SHAPE, record_calls, results, single, tables
from tests.support import kept_for_backward

SHAPES = [SHAPE, (2, 7, 1, 32), (1, 1, 3, 2), (2, 3, 17, 6), (1, 5, 4, 128), (1, 2, 40, 20), (1, 2, 3, 1024)]

Function = Callable[[Tensor], Tensor]
Turning = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return record_calls(monkeypatch)


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    with reference_kernels():
        return results(x.double(), cos.double(), sin.double())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_numbers_are_those_of_the_steps(shape: tuple[int, ...], calls: list[str]) -> None:
    x, (cos, sin) = single(*shape), tables(shape[1], shape[3], start=4)
    fused = results(x, cos, sin)
    assert calls == EVERY_LOOP
    with reference_kernels():
        steps = results(x, cos, sin)
    assert calls == EVERY_LOOP
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def by_torch(x: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """As `results`, by torch's own RMSNorm and the rotation as everyone writes it."""

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    weight, g = 1 + 0.3 * single(x.shape[-1], seed=1), single(*x.shape, seed=2)
    found = []
    for gain in (False, None, weight.requires_grad_()):
        leaf = x.detach().requires_grad_()
        y = turned(leaf if gain is False else F.rms_norm(leaf, x.shape[-1:], gain, EPS))
        found += [y.detach(), *torch.autograd.grad(y, [leaf] if gain is not weight else [leaf, weight], g)]
    return found


@pytest.mark.parametrize("e", [32, 64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_no_error_is_larger_than_torchs(e: int, seed: int) -> None:
    x, (cos, sin) = single(4, 33, 3, e, seed=10 + seed), tables(33, e)
    for ours, theirs, exact in zip(results(x, cos, sin), by_torch(x, cos, sin), reference(x, cos, sin), strict=True):
        assert_rounded_once(ours, exact)
        assert_no_less_accurate(ours, theirs, exact)


def test_rows_of_any_size() -> None:
    """Those whose squares leave float32 too, which is computed as if there were no such thing."""
    sizes = torch.tensor([1e-42, 1e-30, 1e-20, 1.0, 1e20, 1e38]).reshape(1, 6, 1, 1)
    x, (cos, sin) = single(2, 6, 3, 64).clamp(-3, 3) * sizes, tables(6, 64)
    with reference_kernels():
        exact = results(x.double(), cos.double(), sin.double(), eps=1e-60)
    for one, other in zip(results(x, cos, sin, eps=1e-60), exact, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_once(dtype: torch.dtype, calls: list[str]) -> None:
    x, (cos, sin) = single(2, 7, 4, 64).to(dtype), tables(7, 64)
    found, spacing = results(x, cos, sin), torch.finfo(dtype).eps
    assert calls == EVERY_LOOP
    assert torch.equal(found[0], apply_rotary(x.float(), cos, sin).to(dtype))
    assert torch.equal(found[2], rms_norm_rotary(x.float(), None, cos, sin, EPS).to(dtype))
    with reference_kernels():
        steps = results(x, cos, sin)
    for one, other in zip(found, steps, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=3 * spacing, atol=8 * spacing)


@pytest.mark.usefixtures("two_threads")
def test_threads_do_not_change_a_bit(calls: list[str]) -> None:
    x, (cos, sin) = single(*SHAPE), tables(SHAPE[1], SHAPE[3])
    many = results(x, cos, sin)
    assert calls == [f"{name} by 2" for name in EVERY_LOOP]
    torch.set_num_threads(1)
    alone = results(x, cos, sin)
    assert calls[len(EVERY_LOOP) :] == EVERY_LOOP
    for one, other in zip(many, alone, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("two_threads")
def test_threads_do_not_change_a_sum_that_nearly_cancels() -> None:
    """Where float64 has lost digits, another order of the sum would show in float32 as well."""
    x, g, (cos, sin) = single(*SHAPE), single(*SHAPE, seed=2), tables(SHAPE[1], SHAPE[3])
    x[2], g[2] = x[0], -1e12 * g[0]
    g[0] *= 1e12
    found: list[Tensor] = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        weight = torch.ones(SHAPE[3], requires_grad=True)
        found += torch.autograd.grad(rms_norm_rotary(x, weight, cos, sin, EPS), weight, g)
    assert torch.equal(*found)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, (cos, sin) = single(*SHAPE), tables(SHAPE[1], SHAPE[3])
    weight = single(SHAPE[3], seed=1)
    ways: list[Turning] = [apply_rotary, lambda x, cos, sin: rms_norm_rotary(x, weight, cos, sin, EPS)]
    for function in ways:
        whole = function(x, cos, sin)
        assert torch.equal(function(x[1:2], cos, sin), whole[1:2])
        assert torch.equal(function(x[:, 7:9], cos[7:9], sin[7:9]), whole[:, 7:9])
        assert torch.equal(function(x[:, :, 2:3], cos, sin), whole[:, :, 2:3])


@pytest.mark.parametrize("how", ["transposed", "sliced", "every-other"])
def test_memory_in_any_order(how: str, calls: list[str]) -> None:
    b, s, heads, e = SHAPE
    x = {
        "transposed": lambda: single(b, heads, s, e).transpose(1, 2),
        "sliced": lambda: single(b, s, 3 * heads, e)[:, :, heads : 2 * heads],
        "every-other": lambda: single(b, s, heads, 2 * e)[..., ::2],
    }[how]()
    cos, sin = tables(s, e)
    assert not x.is_contiguous()
    for one, other in zip(results(x, cos, sin), results(x.contiguous(), cos, sin), strict=True):
        assert torch.equal(one, other)
    assert calls == 2 * EVERY_LOOP


def test_a_gradient_in_any_order() -> None:
    b, s, heads, e = SHAPE
    cos, sin = tables(s, e)
    g = single(b, heads, s, e, seed=3).transpose(1, 2)
    ways: list[Function] = [lambda x: apply_rotary(x, cos, sin), lambda x: rms_norm_rotary(x, None, cos, sin, EPS)]
    for function in ways:
        x = single(*SHAPE).requires_grad_()
        (one,) = torch.autograd.grad(function(x), x, g)
        (other,) = torch.autograd.grad(function(x), x, g.contiguous())
        assert torch.equal(one, other)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row_only(value: float) -> None:
    x, (cos, sin) = single(2, 3, 4, 32), tables(3, 32)
    x[1, 2, 3, 20] = value
    fused = results(x, cos, sin)
    with reference_kernels():
        steps = results(x, cos, sin)
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not fused[0].isfinite().all()
    assert not fused[2].isfinite().all()


def test_second_derivatives_are_those_of_the_steps() -> None:
    cos, sin = tables(3, 32)
    weight = single(32, seed=1).requires_grad_()

    def second(function: Function) -> list[Tensor]:
        leaf = single(2, 3, 4, 32).requires_grad_()
        (first,) = torch.autograd.grad(function(leaf).pow(3).sum(), leaf, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [leaf, weight], materialize_grads=True))

    ways: list[Function] = [lambda x: apply_rotary(x, cos, sin), lambda x: rms_norm_rotary(x, weight, cos, sin, EPS)]
    for function in ways:
        fused = second(function)
        assert not torch.equal(fused[0], torch.zeros_like(fused[0]))
        with reference_kernels():
            steps = second(function)
        for one, other in zip(fused, steps, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_what_is_kept_for_the_backward_pass() -> None:
    """Of the input nothing where it is only turned, and the input alone where it is normalized."""
    x, weight, (cos, sin) = single(*SHAPE).requires_grad_(), single(SHAPE[3], seed=1), tables(SHAPE[1], SHAPE[3])
    weight.requires_grad_()

    def kept(function: Function) -> set[int]:
        return set(kept_for_backward(lambda: function(x)))

    given = {cos.data_ptr(), sin.data_ptr()}
    assert kept(lambda x: apply_rotary(x, cos, sin)) == given
    given |= {x.data_ptr(), weight.data_ptr()}
    assert kept(lambda x: rms_norm_rotary(x, weight, cos, sin, EPS)) == given


def test_no_gradient_is_computed_that_nobody_asked_for(calls: list[str]) -> None:
    x, weight, (cos, sin) = single(2, 3, 4, 32).requires_grad_(), single(32, seed=1), tables(3, 32)
    rms_norm_rotary(x, weight, cos, sin, EPS).sum().backward()
    assert weight.grad is None
    with torch.no_grad():
        assert not apply_rotary(x, cos, sin).requires_grad
        assert not rms_norm_rotary(x, weight.requires_grad_(), cos, sin, EPS).requires_grad
    assert torch.autograd.grad(rms_norm_rotary(x.detach(), weight, cos, sin, EPS).sum(), weight)[0].any()
    assert calls.count("rms_norm_rotary_backward") == 2
