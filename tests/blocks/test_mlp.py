"""The MLP and its activations, each against its formula in plain arithmetic."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.blocks.activations import ACTIVATIONS, relu2
from normscope.blocks.mlp import MLP, default_hidden
from normscope.errors import ConfigError, DtypeError, NormscopeError, ShapeError
from tests.support import every_refusal, randn, scramble

Formula = Callable[[float], float]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


PLAIN: dict[str, Formula] = {
    "relu2": lambda x: max(x, 0.0) ** 2,
    "relu": lambda x: max(x, 0.0),
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
}
GATED: dict[str, Formula] = {"swiglu": silu, "reglu": lambda x: max(x, 0.0), "geglu": gelu, "geglu-tanh": gelu_tanh}

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def made(name: str, **options: Any) -> MLP:
    mlp = MLP(6, 10, name, **options).double()
    scramble(mlp)
    return mlp


def test_every_activation_has_a_formula_here() -> None:
    assert set(ACTIVATIONS) == set(PLAIN) | set(GATED)
    assert {name for name, activation in ACTIVATIONS.items() if activation.gated} == set(GATED)


@every_activation
def test_the_function_is_the_formula(name: str) -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    wanted = torch.tensor([{**PLAIN, **GATED}[name](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name].function(x), wanted, rtol=1e-12, atol=1e-12)


def test_the_worked_example_of_relu_squared() -> None:
    assert relu2(torch.tensor([-2.0, 0.0, 0.5, 3.0])).tolist() == [0.0, 0.0, 0.25, 9.0]
    table = {-5.0: 0.0, 0.1: 0.01, 1.0: 1.0, 2.0: 4.0, 3.0: 9.0}
    y = relu2(torch.tensor(list(table), dtype=torch.float64))
    torch.testing.assert_close(y, torch.tensor(list(table.values()), dtype=torch.float64), rtol=1e-15, atol=0)


def test_relu_squared_has_the_derivative_of_a_parabola() -> None:
    x = torch.tensor([-2.0, 0.0, 0.5, 3.0], requires_grad=True)
    relu2(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0, 6.0]
    away_from_zero = randn(12).add(0.1).requires_grad_()
    assert torch.autograd.gradcheck(relu2, away_from_zero)
    assert torch.autograd.gradgradcheck(relu2, away_from_zero)


@every_activation
@pytest.mark.parametrize("bias", [True, False])
def test_the_mlp_is_its_formula(name: str, bias: bool) -> None:
    """One number after the other, in the order of the formula."""
    mlp, x = made(name, bias=bias), randn(2, 3, 6)

    def project(layer: str, values: list[float]) -> list[float]:
        weight: list[list[float]] = getattr(mlp, layer).weight.tolist()
        shift: list[float] = getattr(mlp, layer).bias.tolist() if bias else [0.0] * len(weight)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in zip(weight, shift, strict=True)]

    def by_hand(token: list[float]) -> list[float]:
        up = project("up", token)
        if name in PLAIN:
            return project("down", [PLAIN[name](h) for h in up])
        gate = project("gate", token)
        return project("down", [GATED[name](g) * h for g, h in zip(gate, up, strict=True)])

    wanted = torch.tensor([[by_hand(token) for token in row] for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(mlp(x), wanted, rtol=1e-12, atol=1e-12)


@every_activation
def test_tokens_are_never_mixed(name: str) -> None:
    mlp, x = made(name), randn(2, 5, 6)
    changed = x.clone()
    changed[1, 2] = 100.0
    same = mlp(x) == mlp(changed)
    assert not same[1, 2].all()
    same[1, 2] = True
    assert same.all()


@every_activation
@pytest.mark.parametrize("width", [16, 60, 768])
def test_a_gated_mlp_is_about_as_large_as_a_plain_one(name: str, width: int) -> None:
    with torch.device("meta"):
        mlp = MLP(width, activation=name)
    hidden = default_hidden(width, name)
    assert mlp.up.out_features == mlp.down.in_features == hidden
    if name in PLAIN:
        assert hidden == 4 * width
    else:
        assert hidden % 8 == 0
        assert 0 <= hidden - 8 * width / 3 < 9
    count = sum(p.numel() for p in mlp.parameters())
    assert count == pytest.approx(8 * width * width, rel=24 / (8 * width) + 1e-9)  # up to eight hidden units more


def test_dropout_is_for_training_only() -> None:
    mlp, x = made("relu2", dropout=0.5), randn(40, 6)
    whole = made("relu2")(x)
    dropped = mlp(x)
    gone = dropped == 0
    assert 0.3 < gone.double().mean().item() < 0.7
    torch.testing.assert_close(dropped[~gone], 2 * whole[~gone])
    assert torch.equal(mlp.eval()(x), whole)


def test_the_down_projection_writes_to_the_stream() -> None:
    """So the initializations that treat such weights differently do so here."""
    mlp = MLP(8, init="nanochat")
    assert mlp.up.weight.any()
    assert not mlp.down.weight.any()


def test_the_repr_says_what_it_is() -> None:
    assert "activation=swiglu" in repr(MLP(4, activation="swiglu"))


@every_refusal(
    (
        "activation",
        ConfigError,
        "unknown activation 'tanh'; choose one of relu2, relu",
        lambda: MLP(4, activation="tanh"),
    ),
    ("not-a-name", ConfigError, "unknown activation", lambda: MLP(4, activation=[])),  # type: ignore[arg-type]
    ("width", ConfigError, "width=None must be", lambda: MLP(None)),  # type: ignore[arg-type]
    ("width-with-hidden", ConfigError, "width=0 must be", lambda: MLP(0, 4)),
    ("hidden", ConfigError, "hidden=0 must be", lambda: MLP(4, 0)),
    ("dropout", ConfigError, "dropout=1.5 must be", lambda: MLP(4, dropout=1.5)),
    ("dropout-text", ConfigError, "dropout='a' must be", lambda: MLP(4, dropout="a")),  # type: ignore[arg-type]
    ("bias", ConfigError, "bias='no' must be True or False", lambda: MLP(4, bias="no")),  # type: ignore[arg-type]
    ("input", ShapeError, "last dimension is 4", lambda: MLP(4)(torch.zeros(2, 5))),
    ("input-type", DtypeError, "int64", lambda: MLP(4)(torch.zeros(2, 4).long())),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_gradients_of_the_whole_mlp() -> None:
    mlp = made("swiglu")

    def run(x: Tensor) -> Tensor:
        y: Tensor = mlp(x)
        return y

    assert torch.autograd.gradcheck(run, randn(2, 6).requires_grad_())
