"""Embedding in torch.nn.Embedding's place: the same arguments, numbers, gradients and state_dict."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.blocks.linear import Embedding
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ShapeError, TokenError
from tests.support import every_refusal, randn

TOKENS = torch.tensor([[1, 2, 2], [0, 6, 1]])
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"padding_idx": 2},
    {"padding_idx": -1},
    {"max_norm": 0.5},
    {"max_norm": 0.5, "norm_type": 1.0},
    {"scale_grad_by_freq": True},
    {"sparse": True},
    {"sparse": True, "padding_idx": 1},
)


def pair(dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Embedding, nn.Embedding]:
    ours, theirs = Embedding(7, 4, dtype=dtype, **options), nn.Embedding(7, 4, dtype=dtype, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def step(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    y = table(tokens)
    y.backward(randn(*y.shape, seed=1, dtype=y.dtype))
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse == table.sparse
    return y, table.weight.grad.to_dense()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_outputs_and_gradients_are_torchs_bit_for_bit(options: dict[str, Any], dtype: torch.dtype) -> None:
    ours, theirs = pair(dtype, **options)
    assert ours.sparse == theirs.sparse
    for mine, known in zip(step(ours, TOKENS), step(theirs, TOKENS), strict=True):
        assert mine.dtype == dtype
        assert torch.equal(mine, known)
    assert torch.equal(ours.weight, theirs.weight)  # max_norm changes the table in passing


@pytest.mark.parametrize(
    "tokens", [TOKENS.int(), TOKENS[0], torch.tensor(3), TOKENS[:, :0]], ids=lambda t: str(t.shape)
)
def test_tokens_of_any_shape(tokens: Tensor) -> None:
    ours, theirs = pair()
    assert torch.equal(ours(tokens), theirs(tokens))


def test_the_padding_entry_starts_at_zero_and_stays_there() -> None:
    table = Embedding(7, 4, padding_idx=2)
    assert not table.weight[2].any()
    _, gradient = step(table, TOKENS)
    assert not gradient[2].any()
    assert gradient[1].any()


def test_state_dict_goes_both_ways() -> None:
    ours, theirs = Embedding(7, 4), nn.Embedding(7, 4)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(TOKENS), theirs(TOKENS))
    again = Embedding(7, 4)
    theirs.load_state_dict(again.state_dict())
    assert torch.equal(again(TOKENS), theirs(TOKENS))


@pytest.mark.parametrize("freeze", [True, False])
def test_from_pretrained_is_torchs(freeze: bool) -> None:
    values = randn(7, 4, dtype=torch.float32)
    ours = Embedding.from_pretrained(values, freeze, padding_idx=1, max_norm=2.0)
    theirs = nn.Embedding.from_pretrained(values, freeze, padding_idx=1, max_norm=2.0)
    assert isinstance(ours, Embedding)
    assert torch.equal(ours(TOKENS), theirs(TOKENS))
    assert ours.weight.requires_grad == theirs.weight.requires_grad == (not freeze)
    assert ours.padding_idx == theirs.padding_idx == 1


def test_deep_copies_and_the_meta_device() -> None:
    table = Embedding(7, 4, padding_idx=2, device="meta")
    assert table(TOKENS.to("meta")).shape == (2, 3, 4)
    table.to_empty(device="cpu").reset_parameters()
    assert table.weight.isfinite().all()
    assert not table.weight[2].any()
    twin = copy.deepcopy(table)
    with torch.no_grad():
        twin.weight.zero_()
    assert table.weight.any()


def test_the_repr_says_what_it_is() -> None:
    assert repr(Embedding(7, 4)) == "Embedding(vocab=7, d=4, init=glorot-truncated)"
    assert repr(Embedding(7, 4, role="position")) == "Embedding(positions=7, d=4, init=glorot-truncated)"
    assert repr(Embedding(7, 4, -1, init="gpt2")) == "Embedding(vocab=7, d=4, padding_idx=6, init=gpt2)"


def ask(*tokens: float, **options: Any) -> Any:
    return lambda: Embedding(7, 4, **options)(torch.tensor(tokens))


@every_refusal(
    ("beyond", TokenError, r"token id 7 is out of range for Embedding\(vocab=7.*: expected 0 to 6", ask(1, 7)),
    ("first", TokenError, "token id 8 is out of range", ask(1, 8, -3, 9)),
    ("negative", TokenError, "token id -1 is out of range", ask(6, -1)),
    ("renormed", TokenError, "token id 99 is out of range", ask(99, max_norm=1.0)),
    ("floats", DtypeError, r"int64 or int32, but got torch.float32; use tokens.long\(\)", ask(1.0)),
    ("truth", DtypeError, "got torch.bool", ask(True)),
    ("list", ArgumentTypeError, "takes a tensor, but got list", lambda: Embedding(7, 4)([1])),
    ("vocabulary", ConfigError, "num_embeddings=0", lambda: Embedding(0, 4)),
    ("width", ConfigError, r"embedding_dim=1\.5", lambda: Embedding(7, 1.5)),  # type: ignore[arg-type]
    ("padding", ConfigError, "padding_idx=7 is not one of the 7", lambda: Embedding(7, 4, 7)),
    ("padding-below", ConfigError, "padding_idx=-8 is not", lambda: Embedding(7, 4, -8)),
    ("padding-text", ConfigError, "padding_idx='a' is not", lambda: Embedding(7, 4, "a")),  # type: ignore[arg-type]
    ("table", ShapeError, r"\(7, 4\), but got \(4, 7\)", lambda: Embedding(7, 4, _weight=torch.zeros(4, 7))),
    ("table-list", ArgumentTypeError, "got list", lambda: Embedding(1, 1, _weight=[[1]])),  # type: ignore[arg-type]
    (
        "table-whole",
        DtypeError,
        "an embedding table must be floating-point",
        lambda: Embedding(7, 4, _weight=torch.zeros(7, 4).long()),
    ),
    ("max-norm", ConfigError, "max_norm='x' must be", lambda: Embedding(7, 4, max_norm="x")),  # type: ignore[arg-type]
    ("norm-type", ConfigError, "norm_type=0 must be", lambda: Embedding(7, 4, norm_type=0)),
    (
        "whole",
        DtypeError,
        "an embedding table must be floating-point",
        lambda: Embedding.from_pretrained(torch.zeros(7, 4).long()),
    ),
    ("vector", ShapeError, r"\(entries, width\), but got \(4,\)", lambda: Embedding.from_pretrained(torch.zeros(4))),
    ("pretrained-list", ArgumentTypeError, "got list", lambda: Embedding.from_pretrained([[1.0]])),  # type: ignore[arg-type]
    ("type", DtypeError, "must be a torch float type", lambda: Embedding(7, 4, dtype=torch.int32)),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
