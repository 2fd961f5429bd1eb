"""Documents packed into one row: nothing of one reaches another."""

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.errors import ConfigError, ShapeError
from normscope.models.gpt import GPT
from normscope.models.presets import preset

TINY: dict[str, Any] = {"vocab_size": 50, "context": 40, "depth": 2, "width": 32, "heads": 4}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("nanochat", {}),
    ("nanochat-2026-07", {}),
    ("gpt2", {"smear": True}),
    ("llama", {}),
    ("llama", {"window": 5, "window_pattern": "SL", "attention_cap": 5.0}),
    ("llama", {"positions": "none"}),
    ("gpt2", {"norm": "rms", "qk_norm": "layer", "wiring": "parallel"}),
]
LENGTHS = [[17, 1, 22], [40]]


def gpt(name: str, **settings: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(preset(name, **TINY, **settings))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.1)
    return model


def packed() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    positions = torch.stack([torch.cat([torch.arange(length) for length in lengths]) for lengths in LENGTHS])
    return torch.randint(50, positions.shape), positions


@pytest.mark.parametrize(("name", "settings"), MODELS)
def test_logits_of_packed_documents_are_those_of_each_alone(name: str, settings: dict[str, Any]) -> None:
    model, (tokens, positions) = gpt(name, **settings).eval(), packed()
    logits = model(tokens, positions=positions)
    for row, lengths in enumerate(LENGTHS):
        found = logits[row].split(lengths)
        alone = [model(document[None])[0] for document in tokens[row].split(lengths)]
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other)
    assert not torch.allclose(logits[0], model(tokens)[0])


@pytest.mark.parametrize("name", ["gpt2", "nanochat"])
def test_gradients_do_not_leak(name: str) -> None:
    model, (tokens, positions) = gpt(name).double(), packed()
    targets = torch.full_like(tokens, -1)
    targets[0, :17] = tokens[0, :17]  # only the first document of the first row has a loss
    model.loss(tokens, targets, positions).backward()
    packed_gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    model.loss(tokens[:1, :17], targets[:1, :17]).backward()
    for one, weight in zip(packed_gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, weight.grad)


def test_dropout_works_within_documents() -> None:
    model, (tokens, positions) = gpt("llama", dropout=0.2).train(), packed()
    assert model.loss(tokens, tokens, positions).isfinite()


@pytest.mark.parametrize("positions", [[[1, 2, 3]], [[0, 2, 3]], [[0, 1, 1]], [[0, 1]]])
def test_positions_that_do_not_count_are_refused(positions: list[list[int]]) -> None:
    with pytest.raises(ShapeError, match="positions"):
        gpt("gpt2")(torch.zeros(1, 3, dtype=torch.long), positions=torch.tensor(positions))


def test_what_would_leak_is_refused() -> None:
    tokens, positions = packed()
    with pytest.raises(ConfigError, match="shares statistics between tokens"):
        gpt("llama", norm="batch", allow_future_leak=True)(tokens, positions=positions)
    with pytest.raises(ConfigError, match="cannot be combined"):
        gpt("llama")(tokens, positions=positions, mask=torch.ones_like(tokens, dtype=torch.bool))
