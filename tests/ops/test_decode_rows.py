"""What the decoder is made of, each part against float64: products in three formats, norms, turns and attention."""

import math
from collections.abc import Callable
from typing import Any, get_args

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from normscope.generate.config import WeightFormat
from normscope.generate.decoder import pack
from normscope.ops.fused import decode_rows as few_rows
from normscope.ops.fused import decode_step as decoding
from normscope.ops.fused.compiler import OPTIONS, int64_at
from tests.support import randn

FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
EPS32 = float(np.finfo(np.float32).eps)


def uncached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as the kernels are, but each time anew: numba's cache does not notice a change in what is called."""
    loop: Callable[..., Any] = numba.njit(function, **OPTIONS)
    return loop


@uncached
def _linear_part(part, parts, sizes, x, matrix, y, d_in, d_out):  # type: ignore[no-untyped-def]
    decoding._linear_part(part, parts, int64_at(sizes), x, matrix, y, d_in, d_out, decoding.SET)


@uncached
def _normalize(x, weight, bias, y, d, eps, centered):  # type: ignore[no-untyped-def]
    few_rows.normalize(x, weight, bias, y, d, eps, centered)


@uncached
def _turn(x, cos, sin, half):  # type: ignore[no-untyped-def]
    few_rows.apply_rotary(x, cos, sin, half)


@uncached
def _attend(query, keys, values, y, scores, count, e, scale):  # type: ignore[no-untyped-def]
    few_rows.attend(query, keys, values, y, scores, count, e, np.float32(scale))


@uncached
def _activate(kind, x):  # type: ignore[no-untyped-def]
    return decoding._activate(kind, np.float32(x))


def single(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed, dtype=torch.float32)


def at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def projected(x: Tensor, w: Tensor, weights: WeightFormat, bias: Tensor | None = None, parts: int = 1) -> Tensor:
    packed, scale = pack(w, weights)
    sizes, y = np.zeros(decoding.MODEL_FIELDS, dtype=np.int64), torch.full((w.shape[0],), math.nan)
    sizes[decoding.ROWS], sizes[decoding.WEIGHT_FORMAT] = 1, FORMATS.index(weights)
    matrix = at(packed), at(scale), at(bias)
    for part in range(parts):
        _linear_part(part, parts, sizes.ctypes.data, at(x), matrix, at(y), x.numel(), w.shape[0])
    return y


def unpacked(w: Tensor, weights: WeightFormat) -> Tensor:
    """The numbers that a format stands for, in float64."""
    if weights == "int8":
        step = w.abs().amax(dim=1, keepdim=True) / 127
        return (w / step).round().double() * step.double()
    return (w.bfloat16() if weights == "bfloat16" else w).double()


@pytest.mark.parametrize("weights", FORMATS)
def test_products_of_any_length(weights: WeightFormat) -> None:
    """With nothing but NaN around the row: what is beyond its end has no say."""
    for d in range(1, 71):
        around = torch.full((d + 2,), torch.nan)
        x, w, bias = around[1:-1], single(7, d, seed=d), single(7, seed=1)  # a four, and three
        x.copy_(single(d, seed=100 + d))
        exact = unpacked(w, weights)
        size = (exact.abs() @ x.abs().double()) + bias.abs()
        found = projected(x, w, weights, bias).double()
        assert ((found - (exact @ x.double() + bias)).abs() <= 4 * EPS32 * size).all(), d
        assert torch.equal(projected(x, w, weights), projected(x, w, weights, torch.zeros(7)))


@pytest.mark.parametrize("weights", FORMATS)
def test_products_have_the_same_bits_however_they_are_shared(weights: WeightFormat) -> None:
    for outputs in (1, 4, 37):
        x, w, bias = single(33), single(outputs, 33, seed=1), single(outputs, seed=2)
        alone = projected(x, w, weights, bias)
        assert all(torch.equal(projected(x, w, weights, bias, parts), alone) for parts in (2, 3, 16))


@pytest.mark.parametrize(("weights", "bound"), [("bfloat16", 2**-8), ("int8", 1 / 254)])
def test_what_rounding_costs(weights: WeightFormat, bound: float) -> None:
    """bfloat16: half of its last place. int8: half a step, of which the largest number of a row has 127."""
    w = single(40, 33) * torch.logspace(-20, 20, 40)[:, None]
    size = w.abs() if weights == "bfloat16" else w.abs().amax(dim=1, keepdim=True).expand_as(w)
    assert ((unpacked(w, weights) - w).abs() <= bound * 1.00001 * size).all()


def test_a_row_of_zeros_stays_zero() -> None:
    for weights in FORMATS:
        assert projected(single(9), torch.zeros(2, 9), weights).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_norms(centered: bool, in_place: bool) -> None:
    for d, weight, bias in ((1, None, None), (2, 1, None), (7, None, 2), (16, 1, 2), (67, 1, 2), (500, 1, None)):
        x = 3 * single(d, seed=d) + 5
        gain, shift = (None if seed is None else single(d, seed=seed) for seed in (weight, bias))
        wide = x.double()
        center = wide - wide.mean() if centered else wide
        wanted = center / (center.square().mean() + 1e-5).sqrt()
        wanted = (wanted if gain is None else wanted * gain) + (0 if shift is None else shift)
        y = x if in_place else torch.full((d,), torch.nan)
        _normalize(at(x), at(gain), at(shift), at(y), d, 1e-5, centered)
        torch.testing.assert_close(y.double(), wanted, rtol=3 * EPS32, atol=3 * EPS32)


def test_a_norm_far_from_zero_and_beside_an_outlier() -> None:
    for x in (single(64) + 1e5, single(64) * 1e-18, torch.cat([torch.tensor([1e6]), single(63)])):
        y = torch.empty(64)
        _normalize(at(x), 0, 0, at(y), 64, 1e-12, True)
        wanted = F.layer_norm(x.double(), (64,), eps=1e-12)
        torch.testing.assert_close(y.double(), wanted, rtol=3 * EPS32, atol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_of_what_is_not_a_number(centered: bool, value: float) -> None:
    for place in (0, 5):
        x, y = single(9), torch.empty(9)
        x[place] = value
        _normalize(at(x), 0, 0, at(y), 9, 1e-5, centered)
        wanted = F.layer_norm(x, (9,)) if centered else F.rms_norm(x, (9,), eps=1e-5)
        assert torch.equal(y.isnan(), wanted.isnan())


@pytest.mark.parametrize("half", [1, 2, 7, 16, 35])
def test_turns(half: int) -> None:
    x, angle = single(2 * half), single(half, seed=1)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.double().chunk(2)
    wanted = torch.cat([a * cos - b * sin, a * sin + b * cos])
    _turn(at(x), at(cos), at(sin), half)
    torch.testing.assert_close(x.double(), wanted, rtol=0, atol=4 * EPS32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(count=st.integers(1, 70), e=st.integers(1, 70), size=st.sampled_from([0.01, 1.0, 30.0]))
def test_attention(count: int, e: int, size: float) -> None:
    query, keys, values = size * single(e), single(count, e, seed=1), single(count, e, seed=2)
    y, scores = torch.full((e,), torch.nan), torch.empty(count)
    _attend(at(query), at(keys), at(values), at(y), at(scores), count, e, 0.7 / math.sqrt(e))
    wanted = F.scaled_dot_product_attention(0.7 * query[None].double(), keys.double(), values.double())[0]
    # A score is off by some units of its own size, and its exponential by as much times itself.
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=8 * EPS32 * (4 + size * math.sqrt(e)))


def test_attention_to_what_is_not_a_number() -> None:
    for value in (math.nan, math.inf):
        keys: NDArray[np.float32] = np.ones((3, 4), dtype=np.float32)
        keys[1] = value
        query, values, y, scores = torch.ones(4), torch.ones(3, 4), torch.empty(4), torch.empty(3)
        _attend(at(query), keys.ctypes.data, at(values), at(y), at(scores), 3, 4, 0.5)
        assert y.isnan().all()


ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    decoding.RELU2: lambda x: F.relu(x).square(),
    decoding.RELU: F.relu,
    decoding.GELU: F.gelu,
    decoding.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    decoding.SILU: F.silu,
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: int) -> None:
    x = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([0.0, torch.inf, torch.nan])])
    found = torch.tensor([_activate(kind, value) for value in x.tolist()])
    torch.testing.assert_close(
        found.double(), ACTIVATIONS[kind](x.double()), rtol=6 * EPS32, atol=EPS32, equal_nan=True
    )
