"""Rotary positions: complex numbers that turn, and what follows from that."""

import cmath
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.blocks.rotary import Rotary
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ShapeError
from tests.support import every_refusal, randn


def exact(head_dim: int = 8, context: int = 64, base: float = 10000.0) -> Rotary:
    """With tables of full float64 precision."""
    return Rotary(head_dim, context, base).double()


def turned(vector: list[float], place: int, base: float) -> list[float]:
    """One head at one place: each pair, the i-th of the first half and of the second, is a complex number."""
    half = len(vector) // 2
    pairs = [complex(vector[i], vector[half + i]) * cmath.exp(1j * place * base ** (-i / half)) for i in range(half)]
    return [z.real for z in pairs] + [z.imag for z in pairs]


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_pairs_turn_as_complex_numbers(start: int, base: float) -> None:
    x = randn(2, 7, 3, 8)
    wanted = [[[turned(h, start + s, base) for h in t] for s, t in enumerate(row)] for row in x.tolist()]
    y = exact(base=base)(x, start)
    torch.testing.assert_close(y, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_a_dot_product_depends_on_the_distance_only() -> None:
    rotary, q, k = exact(), randn(8), randn(8, seed=1)

    def at(vector: Tensor, place: int) -> Tensor:
        y: Tensor = rotary(vector.expand(1, 1, 1, 8), place)
        return y.flatten()

    for distance in (0, 1, 7, 30):
        products = torch.stack([at(q, place + distance) @ at(k, place) for place in (0, 1, 5, 33)])
        torch.testing.assert_close(products, products[:1].expand(4), rtol=1e-12, atol=1e-12)
    assert not torch.isclose(at(q, 3) @ at(k, 0), at(q, 2) @ at(k, 0))


def test_lengths_stay() -> None:
    x = randn(2, 64, 3, 8)
    torch.testing.assert_close(exact()(x, 0).norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=0)


def test_far_places_keep_their_digits() -> None:
    """At place 100,000 an angle that was computed in float32 would be wrong in the third digit."""
    rotary, place = Rotary(8, 100_001), 100_000
    x = randn(1, 1, 1, 8)
    wanted = torch.tensor(turned(x.flatten().tolist(), place, 10000.0), dtype=torch.float32)
    torch.testing.assert_close(rotary(x.float(), place).flatten(), wanted, rtol=1e-5, atol=1e-6)


def test_the_type_of_the_input_stays() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert Rotary(4, 3)(torch.ones(1, 3, 1, 4, dtype=dtype), 0).dtype == dtype


def test_no_conversion_rounds_the_tables() -> None:
    """Not on the way down, and not on the way up again either."""
    plain, double = Rotary(8, 64), exact()
    angle = torch.arange(64, dtype=torch.float64) * 10000.0**-0.25
    assert torch.equal(double.cos[:, 0, 1], angle.cos())
    for rotary in (Rotary(8, 64).bfloat16(), Rotary(8, 64).half(), exact().bfloat16(), exact().float()):
        assert rotary.cos.dtype == torch.float32
        assert torch.equal(rotary.cos, plain.cos)
        assert torch.equal(rotary.sin, plain.sin)
    for rotary in (Rotary(8, 64).bfloat16().double(), Rotary(8, 64).to("cpu", torch.float64)):
        assert torch.equal(rotary.cos, double.cos)
        assert torch.equal(rotary.sin, double.sin)


def test_half_precision_is_turned_in_float32_and_rounded_once() -> None:
    x = randn(2, 64, 3, 8).bfloat16()
    assert torch.equal(Rotary(8, 64).bfloat16()(x, 0), Rotary(8, 64)(x.float(), 0).bfloat16())


def test_tables_are_not_saved_and_can_be_filled_again() -> None:
    rotary = Rotary(4, 3)
    assert not rotary.state_dict()
    with torch.device("meta"):
        empty = Rotary(4, 3)
    assert empty.cos.is_meta
    assert empty.double().cos.is_meta
    empty.float().to_empty(device="cpu")  # no more is needed: they do not have to be drawn
    assert torch.equal(empty.cos, rotary.cos)
    assert torch.equal(empty.sin, rotary.sin)


def turn(*shape: int, start: Any = 0) -> Any:
    return lambda: Rotary(4, 8)(torch.zeros(shape), start)


@every_refusal(
    ("odd", ConfigError, "head_dim=5 must be even", lambda: Rotary(5, 8)),
    ("head", ConfigError, "head_dim=0 must be", lambda: Rotary(0, 8)),
    ("context", ConfigError, "context=0 must be", lambda: Rotary(4, 0)),
    ("base", ConfigError, r"rotary_base=-1\.0 must be", lambda: Rotary(4, 8, -1.0)),
    ("base-text", ConfigError, "rotary_base='a' must be", lambda: Rotary(4, 8, "a")),  # type: ignore[arg-type]
    (
        "base-yarn",
        ConfigError,
        "needs a base above 1, but got 0.5",
        lambda: Rotary(4, 8, 0.5, scaling=RotaryScaling(kind="yarn", factor=2.0)),
    ),
    (
        "divisors",
        ConfigError,
        "has 1 divisors for 2 frequencies",
        lambda: Rotary(4, 8, scaling=RotaryScaling(kind="longrope", factor=1.0, divisors=(2.0,))),
    ),
    (
        "divisors-list",
        ConfigError,
        r"divisors=\[2.0\] must be a tuple",
        lambda: RotaryScaling(kind="longrope", factor=1.0, divisors=[2.0]),  # type: ignore[arg-type]
    ),
    ("beyond", ShapeError, "position 8 is out of range: expected 0 to 7", turn(1, 9, 1, 4)),
    ("beyond-later", ShapeError, "position 8 is out of range", turn(1, 2, 1, 4, start=7)),
    ("before", ShapeError, "position -1 is out of range", turn(1, 2, 1, 4, start=-1)),
    ("beyond-row", ShapeError, "position 8 is out of range", turn(2, 2, 1, 4, start=(0, 7))),
    ("before-row", ShapeError, "position -1 is out of range", turn(2, 2, 1, 4, start=(-1, 3))),
    ("rows", ShapeError, "got 2 start positions for 3 rows", turn(3, 2, 1, 4, start=(0, 1))),
    ("start-row", ArgumentTypeError, r"start=1\.5 must be an integer", turn(2, 2, 1, 4, start=(0, 1.5))),
    ("size", ShapeError, r"tokens, heads, 4\), but got shape \(1, 2, 1, 6\)", turn(1, 2, 1, 6)),
    ("rank", ShapeError, r"got shape \(2, 4\)", turn(2, 4)),
    ("list", ArgumentTypeError, "got list", lambda: Rotary(4, 8)([1.0], 0)),
    ("whole", DtypeError, "torch.int64", lambda: Rotary(4, 8)(torch.zeros(1, 2, 1, 4).long(), 0)),
    ("start", ArgumentTypeError, "start=1.0 must be an integer", lambda: Rotary(4, 8)(torch.zeros(1, 2, 1, 4), 1.0)),
    ("start-none", ArgumentTypeError, "start=None must be", lambda: Rotary(4, 8)(torch.zeros(1, 2, 1, 4), None)),
    ("start-truth", ArgumentTypeError, "start=True must be", lambda: Rotary(4, 8)(torch.zeros(1, 2, 1, 4), True)),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
