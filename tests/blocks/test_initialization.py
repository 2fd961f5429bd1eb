"""The start of weights: its spread and its bounds, by role, measured on a million draws."""

import math

import pytest
import torch
from torch import Tensor

from normscope.blocks.initialization import (
    INITIALIZATIONS,
    Initialization,
    Role,
    get_initialization,
    initialize,
    truncated_normal_std,
)
from normscope.blocks.linear import Embedding, Linear
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ShapeError
from tests.support import every_refusal

FAN_OUT, FAN_IN, DEPTH = 2048, 512, 6
COUNT = FAN_OUT * FAN_IN
CUT_AT_3 = 0.98658  # the standard deviation of a standard normal without its tails beyond 3
GLOROT = math.sqrt(2 / (FAN_OUT + FAN_IN))


def drawn(init: str, role: Role, fan_out: int = FAN_OUT, fan_in: int = FAN_IN) -> Tensor:
    weight = torch.empty(fan_out, fan_in)
    get_initialization(init).fill_(weight, role, DEPTH)
    return weight.double()


def has_std(weight: Tensor, std: float) -> None:
    """Mean zero and this spread, both within five standard errors of a sample of this size."""
    n = weight.numel()
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))


@pytest.mark.parametrize("role", ["input", "residual", "head"])
def test_glorot_is_cut_at_three_sigma_which_narrows_it(role: Role) -> None:
    weight = drawn("glorot-truncated", role)
    has_std(weight, CUT_AT_3 * GLOROT)
    assert 2.99 * GLOROT < weight.abs().max().item() <= 3 * GLOROT * (1 + 1e-6)


@pytest.mark.parametrize("role", ["input", "residual", "head"])
def test_the_corrected_glorot_has_sigma_after_the_cut(role: Role) -> None:
    weight = drawn("glorot-corrected", role)
    has_std(weight, GLOROT)
    assert weight.abs().max().item() <= 3 * GLOROT / CUT_AT_3 * (1 + 1e-4)


@pytest.mark.parametrize("role", ["embedding", "position"])
def test_tables_start_at_one(role: Role) -> None:
    has_std(drawn("glorot-truncated", role), CUT_AT_3)
    assert drawn("glorot-truncated", role).abs().max().item() <= 3.0
    has_std(drawn("glorot-corrected", role), 1.0)
    has_std(drawn("nanochat", role), 1.0)


def test_a_table_that_is_the_head_too_starts_small() -> None:
    has_std(drawn("glorot-truncated", "tied"), CUT_AT_3 / math.sqrt(FAN_IN))
    has_std(drawn("glorot-corrected", "tied"), 1 / math.sqrt(FAN_IN))
    has_std(drawn("nanochat", "tied"), 1 / FAN_IN)


@pytest.mark.parametrize("role", ["input", "head", "embedding", "position", "tied"])
def test_gpt2_is_two_hundredths(role: Role) -> None:
    has_std(drawn("gpt2", role), 0.02)


def test_gpt2_divides_what_is_added_to_the_stream_by_how_often_it_is_added() -> None:
    has_std(drawn("gpt2", "residual"), 0.02 / math.sqrt(2 * DEPTH))


def test_nanochat_is_aware_of_the_fan() -> None:
    has_std(drawn("nanochat", "input"), 1 / math.sqrt(FAN_IN))  # wider out than in: nothing to hold back
    has_std(drawn("nanochat", "input", fan_out=512, fan_in=2048), math.sqrt(512 / 2048) / math.sqrt(2048))


@pytest.mark.parametrize("role", ["residual", "head"])
def test_nanochat_starts_what_writes_at_zero(role: Role) -> None:
    assert torch.equal(drawn("nanochat", role), torch.zeros(FAN_OUT, FAN_IN, dtype=torch.float64))


def test_layers_pass_their_role_and_depth_on() -> None:
    residual = Linear(1024, 512, init="gpt2", role="residual", depth=8)
    has_std(residual.weight.detach().double(), 0.02 / 4)
    has_std(Linear(1024, 512, init="gpt2").weight.detach().double(), 0.02)
    has_std(Embedding(1024, 512, init="gpt2", role="position").weight.detach().double(), 0.02)
    has_std(Linear(1024, 512).weight.detach().double(), CUT_AT_3 * math.sqrt(2 / 1536))
    has_std(Embedding(1024, 512).weight.detach().double(), CUT_AT_3)
    assert not Linear(64, 32, init="nanochat", role="head").weight.any()
    for name in INITIALIZATIONS:
        assert torch.equal(Linear(8, 4, init=name).bias, torch.zeros(4)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_spread_is_right_in_every_float_type(dtype: torch.dtype) -> None:
    has_std(Linear(1024, 1024, dtype=dtype).weight.detach().double(), CUT_AT_3 / 32)
    plain = Linear(1024, 1024, dtype=dtype, init="gpt2").weight.detach().double()
    has_std(plain, 0.02)
    assert plain.abs().max() > 4.2 * 0.02  # the tails are there: among a million, beyond 4.2 there are 28


@pytest.mark.parametrize("cut", [0.1, 1.0, 3.0])
def test_what_is_cut_off_is_drawn_again(cut: float) -> None:
    """Not put on the border, and not left: between the borders the shape is the normal's, bin by bin."""
    weight = torch.empty(500, 400)
    Initialization("cut", lambda *_: 0.5, truncate_at=cut).fill_(weight)
    z = (weight / 0.5).double()
    assert z.abs().max().item() <= cut * (1 + 1e-6)
    edges = torch.linspace(-cut, cut, 21, dtype=torch.float64)
    mass = torch.special.ndtr(edges).diff()
    wanted = weight.numel() * mass / mass.sum()
    found = torch.histogram(z.flatten().clamp(-cut, cut), edges).hist
    assert ((found - wanted).abs() < 5 * wanted.sqrt()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_seed_decides(dtype: torch.dtype) -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(Linear(64, 64, dtype=dtype).weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("cut", [0.5, 1.0, 2.0, 3.0, 6.0])
def test_the_shrinkage_is_the_integral(cut: float) -> None:
    """By the trapezoid rule: the second moment of the normal between -cut and cut, over its mass there."""
    x = torch.linspace(-cut, cut, 200_001, dtype=torch.float64)
    density = torch.exp(-x.square() / 2)
    variance = torch.trapezoid(x.square() * density, x) / torch.trapezoid(density, x)
    assert truncated_normal_std(cut) == pytest.approx(variance.sqrt().item(), rel=1e-9)


def test_an_initialization_of_ones_own_passes_through() -> None:
    def by_depth(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
        return 0.5 / depth

    init = Initialization("by-depth", by_depth)
    has_std(Linear(1024, 512, init=init, depth=5).weight.detach().double(), 0.1)
    assert repr(Linear(2, 3, init=init)) == "Linear(d_in=2, d_out=3, bias=True, init=by-depth)"


def test_initialize_draws_what_the_constructor_would() -> None:
    layer = Linear(8, 4)
    torch.manual_seed(7)
    fresh = Linear(8, 4)
    torch.manual_seed(7)
    initialize(layer)
    assert torch.equal(layer.weight, fresh.weight)


@every_refusal(
    (
        "unknown",
        ConfigError,
        "unknown initialization 'xavier'; choose one of glorot",
        lambda: Linear(2, 2, init="xavier"),
    ),
    ("not-a-name", ConfigError, "unknown initialization", lambda: Linear(2, 2, init=["gpt2"])),  # type: ignore[arg-type]
    ("role", ConfigError, "role='output': choose one of input", lambda: Linear(2, 2, role="output")),  # type: ignore[arg-type]
    ("depth", ConfigError, "depth=0", lambda: Linear(2, 2, depth=0)),
    ("cut", ConfigError, "truncate_at=0 must be", lambda: Initialization("cut", lambda *_: 1.0, truncate_at=0)),
    ("vector", ShapeError, r"got shape \(3,\)", lambda: INITIALIZATIONS["gpt2"].fill_(torch.empty(3))),
    ("list", ArgumentTypeError, "got list", lambda: INITIALIZATIONS["gpt2"].fill_([1])),  # type: ignore[arg-type]
    ("whole", DtypeError, "torch.int64", lambda: INITIALIZATIONS["gpt2"].fill_(torch.zeros(2, 2).long())),
    ("std", ConfigError, "std=3 must be a function", lambda: Initialization("x", 3)),  # type: ignore[arg-type]
    ("negative", ConfigError, "'x' returned std=-1.0", lambda: Linear(2, 2, init=Initialization("x", lambda *_: -1.0))),
    ("nan", ConfigError, "returned std=nan", lambda: Linear(2, 2, init=Initialization("x", lambda *_: math.nan))),
    ("model", ArgumentTypeError, "initialize takes a model.* but got int", lambda: initialize(3)),  # type: ignore[arg-type]
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: object) -> None:
    assert callable(mistake)
    with pytest.raises(error, match=words):
        mistake()
