"""Validation: the mean loss over the whole split, each token once."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from normscope.data.batches import windows
from normscope.errors import CorpusError
from normscope.models.gpt import GPT
from normscope.models.presets import gpt2, nanochat
from normscope.training.validation import evaluate
from tests.support import random_tokens, scramble

TOKENS = random_tokens(11, 203, seed=4).numpy()  # the last window is a short one


def new_model(dropout: float = 0.5) -> GPT:
    model = GPT(gpt2(vocab_size=11, context=8, depth=2, width=16, heads=2, dropout=dropout))
    scramble(model)
    return model


def slow_loss(model: GPT, context: int) -> float:
    """By the definition, in float64: a window at a time, a token at a time."""
    model = model.double().eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(TOKENS) - 1, context):
            window = torch.from_numpy(TOKENS[start : start + context + 1])
            logits = model(window[None, :-1])[0]
            total += sum(cross_entropy(logits[i], window[i + 1]).item() for i in range(len(logits)))
    return total / (len(TOKENS) - 1)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_loss_is_the_mean_over_the_whole_text(batch: int) -> None:
    model = new_model()
    found = evaluate(model, windows(TOKENS, 8, batch), bytes_per_token=2.5)
    assert found.loss == pytest.approx(slow_loss(model, 8), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) / 2.5, rel=1e-12)


def test_one_window_gives_the_loss_of_the_model() -> None:
    model = GPT(nanochat(vocab_size=11, context=256, depth=1, width=16, heads=2)).double()
    scramble(model)
    text = torch.from_numpy(TOKENS)
    found = evaluate(model, windows(TOKENS, 256, 4), 1.0)
    assert found.loss == pytest.approx(model.loss(text[None, :-1], text[None, 1:]).item(), rel=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_the_train_mode_is_restored(training: bool) -> None:
    model = new_model().train(training)
    before = torch.get_rng_state()
    first = evaluate(model, windows(TOKENS, 8, 4), 1.0)
    assert evaluate(model, windows(TOKENS, 8, 4), 1.0) == first  # no dropout
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in model.parameters())
    with pytest.raises(RuntimeError, match="torn"):
        evaluate(model, _torn(), 1.0)
    assert model.training is training


def _torn() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield TOKENS[None, :8], TOKENS[None, 1:9]
    raise RuntimeError("torn")


def test_an_empty_split_is_an_error() -> None:
    with pytest.raises(CorpusError, match="the validation split is empty"):
        evaluate(new_model(), iter(()), 1.0)
    with pytest.raises(CorpusError, match="at least 2 are needed"):
        evaluate(new_model(), windows(np.array([1]), 8, 4), 1.0)
