"""The block's config and what it refuses, the future above all; and padding through a whole block."""

from typing import Any

import pytest
import torch

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm.norm_spec import TEXT_NORMS, NormSpec
from normscope.errors import (
    ArgumentTypeError,
    ConfigError,
    DtypeError,
    FutureLeakError,
    NormscopeError,
    ScopeError,
    ShapeError,
)
from tests.blocks.test_wirings import WIDTH, every_wiring, made
from tests.support import close_all, every_refusal, gradients, randn, real_tokens

LEAKS = ["b [s] d", "[b s] d", "[...] d", "[b ...] d"]
every_leak = pytest.mark.parametrize("scope", LEAKS)


def config(**options: Any) -> BlockConfig:
    return BlockConfig(**{"width": WIDTH, "heads": 4, **options})


@every_leak
def test_a_causal_norm_may_not_bracket_time(scope: str) -> None:
    with pytest.raises(FutureLeakError) as caught:
        config(norm=NormSpec(scope))
    assert str(caught.value) == (
        f"norm='{scope}' brackets the token axis: in training, every token would be normalized with statistics of "
        f"later tokens, which leaks the tokens that the model has to predict. Use a scope that does not bracket it, "
        f"such as '... [d]'; or, to study the leak, pass allow_future_leak=True"
    )
    with pytest.raises(FutureLeakError, match=r"^qk_norm='b "):
        config(qk_norm=NormSpec("b [s] h e", affine=None))


@every_leak
def test_the_refusal_is_right_and_can_be_overruled(scope: str) -> None:
    """The norm does leak; and it is admitted when that is asked for."""
    x = randn(2, 6, WIDTH)
    later = x.clone()
    later[:, 5] *= 3.0
    block = made("pre", norm=NormSpec(scope), allow_future_leak=True)
    assert not torch.isclose(block(x)[:, :5], block(later)[:, :5]).all()
    assert Block(config(norm=NormSpec(scope), causal=False)) is not None


@pytest.mark.parametrize("scope", ["... [d]", "b s [d]", "b s (g [d])", "[b] s d", "[b] s [d]"])
def test_scopes_that_leave_time_out_are_fine_and_leak_nothing(scope: str) -> None:
    sizes = {"g": 4} if "g" in scope else {}
    norm = NormSpec(scope, affine="(g d)" if sizes else "d", sizes=sizes)
    x = randn(2, 6, WIDTH)
    later = x.clone()
    later[:, 5] *= 3.0
    block = made("pre", norm=norm)
    assert torch.equal(block(x)[:, :5], block(later)[:, :5])


@every_wiring
@pytest.mark.parametrize("norm", ["layer", "batch", "instance"])
@pytest.mark.parametrize("garbage", [1e30, float("nan")])
def test_padding_changes_nothing_in_any_wiring(wiring: str, norm: str, garbage: float) -> None:
    """Neither outputs nor gradients nor running statistics: the norms and the attention all got the mask."""
    mask = real_tokens([6, 3], 6)
    found = []
    for value in (0.0, garbage):
        block = made(wiring, norm=TEXT_NORMS[norm], causal=False)
        x = randn(2, 6, WIDTH).masked_fill(~mask[..., None], value)
        y = block(x, mask=mask)
        y[mask].backward(randn(9, WIDTH, seed=1))
        found.append(({"y": y[mask].detach(), **dict(block.named_buffers())}, gradients(block)))
    close_all(found[0][0], found[1][0], 0.0)
    close_all(found[0][1], found[1][1], 0.0)


def test_blocks_stack_and_keep_the_shape() -> None:
    x = randn(2, 5, WIDTH, dtype=torch.float32)
    for _ in range(3):
        x = Block(config(kv_heads=2, hidden=24, activation="geglu", window=2, head_dim=6))(x)
    assert x.shape == (2, 5, WIDTH)


def test_the_repr_names_the_wiring() -> None:
    assert repr(Block(config(wiring="sandwich"))).startswith("Block(\n  wiring='sandwich'")


def ask(*shape: int, mask: Any = None) -> Any:
    return lambda: Block(config())(torch.zeros(shape), mask=mask)


@every_refusal(
    ("width", ConfigError, "width=0 must be", lambda: config(width=0)),
    ("heads", ConfigError, "is not divisible by heads=5", lambda: config(heads=5)),
    ("depth", ConfigError, "depth=0 must be", lambda: config(depth=0)),
    ("hidden", ConfigError, "hidden=-1 must be", lambda: config(hidden=-1)),
    ("window", ConfigError, "window=0 must be", lambda: config(window=0)),
    ("activation", ConfigError, "unknown activation 'swish'", lambda: config(activation="swish")),
    ("wiring", ConfigError, "unknown wiring 'prenorm'", lambda: config(wiring="prenorm")),
    ("wiring-list", ConfigError, "unknown wiring", lambda: config(wiring=["pre"])),
    ("init", ConfigError, "unknown initialization 'he'", lambda: config(init="he")),
    ("dropout", ConfigError, "dropout=1.0 must be", lambda: config(dropout=1.0)),
    ("dropout-nan", ConfigError, "dropout=nan must be", lambda: config(dropout=float("nan"))),
    ("dropout-text", ConfigError, "dropout='0.1' must be", lambda: config(dropout="0.1")),
    ("norm-name", ConfigError, "there is no norm 'rns'; give one of layer, rms", lambda: config(norm="rns")),
    ("qk-norm-name", ConfigError, "there is no norm 'rns'", lambda: config(qk_norm="rns")),
    ("norm-list", ConfigError, "there is no norm", lambda: config(norm=["rms"])),
    ("bias", ConfigError, "bias='no' must be True, False, qkv, attention or mlp", lambda: config(bias="no")),
    ("causal", ConfigError, "causal=None must be True or False", lambda: config(causal=None)),
    ("leak", ConfigError, "allow_future_leak=1 must be True or False", lambda: config(allow_future_leak=1)),
    ("no-config", ConfigError, "a Block expects a BlockConfig, but got 16", lambda: Block(16)),  # type: ignore[arg-type]
    ("rotary", ConfigError, "rotary='x' must be a Rotary", lambda: Block(config(), "x")),  # type: ignore[arg-type]
    ("norm-rank-both-ways", ScopeError, r"n \[c h w\]", lambda: config(norm=NormSpec("n [c h w]"), causal=False)),
    ("norm-rank", ScopeError, r"n \[c h w\]", lambda: config(norm=NormSpec("n [c h w]"))),
    (
        "groups",
        ScopeError,
        "cannot be divided by g=4",
        lambda: config(width=18, heads=3, norm=TEXT_NORMS["group"]),
    ),
    ("rank", ShapeError, r"shape \(5, 16\)", ask(5, WIDTH)),
    ("input", NormscopeError, "16", ask(2, 5, 15)),
    ("mask", ShapeError, r"must be .* of shape \(2, 5\)", ask(2, 5, WIDTH, mask=torch.ones(2, 4).bool())),
    (
        "mask-type",
        DtypeError,
        r"of shape \(2, 5\), True at real tokens, but got .*use mask.bool",
        ask(2, 5, WIDTH, mask=torch.ones(2, 5)),
    ),
    ("mask-list", ArgumentTypeError, "mask", ask(1, 2, WIDTH, mask=[[True, True]])),
    ("list", ArgumentTypeError, "got list", lambda: Block(config())([1.0])),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
