"""The encoder: shapes, any norm, both directions, padding."""

from typing import Any

import pytest
import torch

from normscope.blocks.norm.base import Norm
from normscope.blocks.norm.norm_spec import TEXT_NORMS, NoNorm, NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.errors import (
    ArgumentTypeError,
    ConfigError,
    DtypeError,
    FutureLeakError,
    NormscopeError,
    ShapeError,
    TokenError,
)
from normscope.models.encoder import Encoder, EncoderConfig
from tests.pairs import every_value
from tests.support import every_refusal, random_tokens, real_tokens, scramble

NORMS: dict[str, NormSpec | None] = {
    **TEXT_NORMS,
    "none": None,
    "across-sentences": NormSpec("[b] s d"),
    "everything": NormSpec("[b s d]", affine=None),
    "rms-of-sentence": NormSpec("b [s d]", statistic="rms"),
}
every_norm = pytest.mark.parametrize("norm", NORMS)
TOKENS = random_tokens(20, 3, 7)


def config(**options: Any) -> EncoderConfig:
    sizes = {"vocab_size": 20, "context": 9, "width": 16, "heads": 4, "depth": 2, "dropout": 0.0}
    return EncoderConfig(**{**sizes, **options})


def made(**options: Any) -> Encoder:
    encoder = Encoder(config(**options)).double()
    scramble(encoder)
    return encoder


def test_defaults_are_those_of_the_original_transformer() -> None:
    encoder = Encoder(EncoderConfig(vocab_size=20, context=9, width=16, heads=4))
    made_of = encoder.config
    assert (made_of.wiring, made_of.activation, made_of.dropout, made_of.causal) == ("post", "relu", 0.1, False)
    assert isinstance(encoder.final_norm, NoNorm)  # the blocks end in a norm
    assert isinstance(Encoder(config(wiring="pre")).final_norm, Norm)


@every_norm
@pytest.mark.parametrize("wiring", ["post", "pre"])
def test_any_norm_any_wiring(norm: str, wiring: str) -> None:
    encoder = made(norm=NORMS[norm], wiring=wiring)
    y = encoder(TOKENS)
    assert y.shape == (3, 7, 16)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_token_sees_every_other(wiring: str) -> None:
    encoder = made(wiring=wiring)
    y = encoder(TOKENS)
    for place in (0, 6):
        changed = TOKENS.clone()
        changed[:, place] = (changed[:, place] + 1) % 20
        assert (encoder(changed) != y).any(-1).all()


@every_value(norm=list(NORMS), wiring=list(WIRINGS))
def test_padding_changes_nothing(norm: str, wiring: str) -> None:
    """Neither which tokens stand there nor how many."""
    found = []
    for size, filler in ((7, 0), (7, 5), (9, 3)):
        mask = real_tokens([7, 4, 1], size)
        tokens = torch.full((3, size), filler)
        tokens[:, :7] = TOKENS
        y = made(norm=NORMS[norm], wiring=wiring)(tokens.where(mask, filler), mask=mask)
        assert y.isfinite().all()
        found.append(y[mask])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[2], found[0], rtol=1e-9, atol=1e-9)


def test_positions_matter() -> None:
    encoder = made()
    turned = TOKENS.flip(1)
    assert not torch.isclose(encoder(turned).flip(1), encoder(TOKENS)).all()
    with torch.no_grad():
        encoder.position.weight.zero_()
    torch.testing.assert_close(encoder(turned).flip(1), encoder(TOKENS))  # without places, a bag of tokens


def test_dropout_is_for_training_only() -> None:
    encoder = made(dropout=0.3)
    assert not torch.equal(encoder(TOKENS), encoder(TOKENS))
    encoder.eval()
    assert torch.equal(encoder(TOKENS), encoder(TOKENS))


def ask(tokens: Any, **options: Any) -> Any:
    return lambda: Encoder(config())(tokens, **options)


@every_refusal(
    ("floats", DtypeError, "an encoder takes token ids of int64 or int32", ask(TOKENS.float())),
    ("list", ArgumentTypeError, "got list", ask([[1]])),
    ("rank", ShapeError, r"\(batch, tokens\), but got shape \(7,\)", ask(TOKENS[0])),
    ("long", ShapeError, "10 tokens exceed the encoder's context of 9", ask(torch.zeros(1, 10).long())),
    ("beyond", TokenError, "token id 20 is out of range", ask(torch.tensor([[20]]))),
    ("mask", ShapeError, "mask", ask(TOKENS, mask=torch.ones(3, 6).bool())),
    ("mask-type", DtypeError, r"use mask.bool\(\)", ask(TOKENS, mask=torch.ones(3, 7).int())),
    ("mask-list", ArgumentTypeError, "mask", ask(TOKENS, mask=[True])),
    ("vocabulary", ConfigError, "vocab_size=0 must be", lambda: config(vocab_size=0)),
    ("context", ConfigError, "context=-1 must be", lambda: config(context=-1)),
    ("heads", ConfigError, "heads=3", lambda: config(heads=3)),
    ("leak", FutureLeakError, "brackets the token axis", lambda: config(causal=True, norm=TEXT_NORMS["batch"])),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
