"""Mixes, gates and smear: their formulas, their start, and what they refuse."""

import pytest
import torch

from normscope.blocks.gate import Gate
from normscope.blocks.initialization import initialize
from normscope.blocks.mix import Mix
from normscope.blocks.smear import Smear
from normscope.errors import ConfigError, NormscopeError, ShapeError
from tests.support import every_refusal, randn, scramble


def test_a_mix_multiplies_and_adds() -> None:
    x, y = randn(2, 3, seed=1), randn(2, 3, seed=2)
    torch.testing.assert_close(Mix(2.0, -0.5).double()(x, y), 2 * x - 0.5 * y)
    torch.testing.assert_close(Mix(None, 3.0).double()(x, y), x + 3 * y)
    assert [name for name, _ in Mix(None, 3.0).named_parameters()] == ["b"]


def test_a_gate_reads_the_first_features_only() -> None:
    gate = Gate(width=8, gates=2, features=3, maximum=3.0).double()
    scramble(gate)
    x = randn(5, 8)
    torch.testing.assert_close(gate(x), 3 / (1 + torch.exp(-x[:, :3] @ gate.weight.T)))
    x[:, 3:] = torch.nan
    assert gate(x).isfinite().all()
    assert Gate(width=2, gates=1, features=24).in_features == 2


def test_gates_start_slightly_open() -> None:
    weight = Gate(width=100, gates=100, features=100).weight
    assert 0 <= weight.min() < 0.001
    assert 0.019 < weight.max() <= 0.02


def test_smear_adds_a_fraction_of_the_token_before() -> None:
    smear = Smear(30).double()
    x, previous = randn(2, 4, 30, seed=1), randn(2, 4, 30, seed=2)
    assert torch.equal(smear(x, previous), x)  # at the start
    scramble(smear)
    opened = smear.scale / (1 + torch.exp(-x[..., :24] @ smear.gate.weight.T))
    torch.testing.assert_close(smear(x, previous), x + opened * previous)


def test_everything_starts_anew_when_it_is_initialized() -> None:
    smear, mix = Smear(30), Mix(1.15, 0.2)
    scramble(smear)
    scramble(mix)
    initialize(smear)
    initialize(mix)
    assert smear.scale.item() == 0
    assert 0 <= smear.gate.weight.min() <= smear.gate.weight.max() <= 0.02
    assert mix.a is not None
    assert mix.a.item() == pytest.approx(1.15)
    assert mix.b.item() == pytest.approx(0.2)


@every_refusal(
    ("infinite", ConfigError, "b=inf must be a finite number", lambda: Mix(1.0, float("inf"))),
    ("text", ConfigError, "a='one' must be a finite number", lambda: Mix("one", 1.0)),  # type: ignore[arg-type]
    ("shapes", ShapeError, "tensors of equal shape", lambda: Mix(1.0, 1.0)(torch.ones(2), torch.ones(3))),
    ("smear", ShapeError, "two tensors of equal shape", lambda: Smear(4)(torch.ones(1, 2, 4), torch.ones(1, 1, 4))),
    ("features", ConfigError, "features=0 must be a positive integer", lambda: Gate(8, 1, 0)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: object) -> None:
    with pytest.raises(error, match=words):
        mistake()  # type: ignore[operator]
