"""Inputs that lose digits: within half an ulp of the exact result, and NaN just where torch has it.

The exact result is a plain float64 restatement, which has digits to spare for inputs of the smaller types.
"""

import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from tests.accuracy import assert_no_less_accurate, assert_rounded_once, ulp
from tests.blocks.norm.cases import CASES, CASES_BY_NAME, MODES, Case, randn
from tests.pairs import every_value


def _far_off(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A mean of 1e4, and a spread of a few of the smallest steps that the type can make there."""
    return 1e4 + (randn(shape, 11) * 2).round() * ulp(1e4, dtype)


def _outlier(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    x = randn(shape, 12)
    x.view(-1)[3] = 6e4 if dtype == torch.float16 else 1e6
    return x


HARD: dict[str, Callable[[tuple[int, ...], torch.dtype], Tensor]] = {
    "far-off": _far_off,
    "tiny": lambda shape, dtype: randn(shape, 13) * (1e-6 if dtype == torch.float16 else 1e-20),
    "huge": lambda shape, dtype: randn(shape, 14) * (1e4 if dtype == torch.float16 else 1e30),
    "outlier": _outlier,
    "constant": lambda shape, dtype: torch.full(shape, 3.1, dtype=torch.float64),
}


def _exact(peer: nn.Module, x: Tensor, training: bool) -> Tensor:
    """The layer by its formula, over the dimensions that torch's documentation gives, with torch's parameters."""
    weight, bias = getattr(peer, "weight", None), getattr(peer, "bias", None)
    eps = peer.eps if peer.eps is not None else torch.finfo(torch.float32).eps
    assert isinstance(eps, float)
    shape, mean, along = x.shape, torch.zeros((), dtype=torch.float64), (1, -1) + (1,) * (x.dim() - 2)
    if isinstance(peer, nn.LayerNorm | nn.RMSNorm):
        dims, along = tuple(range(-len(peer.normalized_shape), 0)), peer.normalized_shape
    elif isinstance(peer, nn.GroupNorm):
        x, dims = x.reshape(shape[0], peer.num_groups, -1), (2,)
    elif type(peer).__name__.startswith("Batch"):
        dims = (0, *range(2, x.dim()))
    elif int(type(peer).__name__[-2]) + 2 == x.dim():
        dims = tuple(range(2, x.dim()))
    else:  # one sample without a batch dimension
        dims, along = tuple(range(1, x.dim())), (-1,) + (1,) * (x.dim() - 1)
    if isinstance(peer, _NormBase) and peer.running_mean is not None and not training:
        assert peer.running_var is not None
        mean, square = peer.running_mean.double().reshape(along), peer.running_var.double().reshape(along)
    else:
        if not isinstance(peer, nn.RMSNorm):
            mean = x.mean(dims, keepdim=True)
        square = ((x - mean) ** 2).mean(dims, keepdim=True)
    y = ((x - mean) / (square + eps).sqrt()).reshape(shape)
    y = y if weight is None else y * weight.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def _run(layer: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    leaf = x.detach().clone().requires_grad_()
    y = layer(leaf)
    torch.autograd.backward(y, grad.to(y.dtype))
    found = {"output": y.detach(), "input": leaf.grad, **{name: p.grad for name, p in module.named_parameters()}}
    return {name: value.double().clone() for name, value in found.items() if value is not None}


# Every combination of type, input and mode is there once; each kind of layer has several cases.
@every_value(
    case=CASES_BY_NAME,
    dtype={"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16},
    hard=HARD.keys(),
    training=MODES,
)
def test_nothing_is_lost_but_the_last_rounding(case: Case, dtype: torch.dtype, hard: str, training: bool) -> None:
    """Of the output and of every gradient; torch's own layers lose up to half of the digits here."""
    ours, _ = case.pair(dtype)
    ours.train(training)
    x = HARD[hard](case.shape, dtype).to(dtype)
    assert x.isfinite().all()
    grad = randn(case.shape, 15, dtype)
    exact_peer = case.pair(dtype)[1].double()
    exact = _run(lambda v: _exact(exact_peer, v, training), exact_peer, x.double(), grad)
    mine = _run(ours, ours, x, grad)
    assert mine.keys() == exact.keys()
    for name, raw in exact.items():
        fits = raw.to(dtype).isfinite()  # in float16 some exact results are beyond the largest number
        assert torch.equal(mine[name][~fits], raw.to(dtype).double()[~fits]), name
        value = raw.where(fits, 0.0)
        assert_rounded_once(mine[name].where(fits, 0.0), value, dtype, what=name)


def test_the_exact_form_is_torchs_in_float64() -> None:
    """The measure itself is right: on easy inputs it gives what torch gives in float64."""
    given_eps = [c for c in CASES if c.peer is not nn.RMSNorm or "eps" in c.kwargs]  # else it depends on the type
    for case, training in itertools.product(given_eps, (True, False)):
        _, peer = case.pair(torch.float64)
        peer.train(training)
        x = randn(case.shape, 16)
        exact = _exact(peer, x, training)  # first: the layer's own pass moves its running statistics
        torch.testing.assert_close(exact, peer(x), rtol=1e-11, atol=1e-11)


@every_value(case=CASES_BY_NAME, bad={"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf}, training=MODES)
def test_nan_where_torch_has_nan(case: Case, bad: float, training: bool) -> None:
    ours, peer = case.pair()
    ours.train(training)
    peer.train(training)
    x = case.input()
    x.view(-1)[2] = bad
    y, peer_y = ours(x), peer(x)
    assert torch.equal(y.isnan(), peer_y.isnan())
    assert torch.equal(y.isinf(), peer_y.isinf())
    assert not y.isfinite().all()
    for (name, buffer), (_, peer_buffer) in zip(ours.named_buffers(), peer.named_buffers(), strict=True):
        assert torch.equal(buffer.isfinite(), peer_buffer.isfinite()), name


@pytest.mark.parametrize(("mean", "spread"), [(0.1, 0.0), (1e8, 1e-4), (-3.3e5, 1e-7)])
@pytest.mark.parametrize("name", ["layer", "batch1d", "group", "instance2d"])
def test_float64_too(name: str, mean: float, spread: float) -> None:
    """Against exact fractions: inputs with as many digits as the steps themselves, where centring is all."""
    case = next(c for c in CASES if c.name == name)
    ours, peer = case.pair(torch.float64, **({"elementwise_affine": False} if name == "layer" else {"affine": False}))
    x = mean + spread * randn(case.shape, 17)
    exact = _fractions(x, _groups(case))
    assert_no_less_accurate(ours(x), peer(x), exact, torch.float64)


def _groups(case: Case) -> list[Tensor]:
    """The places, in the flat input, of the values that share a mean."""
    places = torch.arange(math.prod(case.shape)).reshape(case.shape)
    if case.name == "layer":
        return list(places.flatten(0, -2))
    if case.name.startswith("batch"):
        return list(places.movedim(1, 0).flatten(1))
    groups = case.args[0] if case.name == "group" else case.shape[1]
    return list(places.reshape(case.shape[0] * groups, -1))


def _fractions(x: Tensor, groups: list[Tensor], eps: float = 1e-5) -> Tensor:
    out = torch.empty(x.numel(), dtype=torch.float64)
    for places in groups:
        values = [Fraction(v) for v in x.flatten()[places].tolist()]
        mean = sum(values, Fraction(0)) / len(values)
        square = sum(((v - mean) ** 2 for v in values), Fraction(0)) / len(values)
        root = Decimal((square + Fraction(eps)).numerator) / Decimal((square + Fraction(eps)).denominator)
        for place, value in zip(places.tolist(), values, strict=True):
            centered = Decimal((value - mean).numerator) / Decimal((value - mean).denominator)
            out[place] = float(centered / root.sqrt())
    return out.reshape(x.shape)
