"""Each known mistake is found by its effect on the logits alone, and named."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from normscope.comparing.behavior import compare_behavior
from normscope.comparing.causes import find_cause
from normscope.comparing.mistakes import mistakes
from normscope.comparing.runtime import FloatArray, GPTRuntime
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import gpt2, llama, nanochat

SIZES = {"vocab_size": 97, "context": 32, "depth": 2, "width": 32}
CONFIGS = {
    "gpt2": gpt2(**SIZES, heads=4),
    "llama": llama(**SIZES, heads=6, kv_heads=2, head_dim=8, qk_norm="rms", window=9, window_pattern="SL"),
    "nanochat": nanochat(**SIZES, heads=4),
}


def trained(config: GPTConfig) -> GPT:
    """A model whose weights all matter: no zeros, gains other than 1, small values at which eps counts."""
    torch.manual_seed(1)
    model = GPT(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * (0.02 if "embedding" in name else 0.2) + 1.0 * ("norm" in name))
    return model


class BlackBox(GPTRuntime):
    """A runtime that shows only its logits."""

    def layers(self, tokens: Sequence[int]) -> dict[str, FloatArray]:
        return {}


def check_found(name: str, step: int, start: int = 0) -> None:
    model = trained(CONFIGS[name])
    ours, tokens, found = GPTRuntime(model), list(range(0, 96, 3)), 0
    for text, config, weights in islice(mistakes(model.config, model.state_dict()), start, None, step):
        theirs = BlackBox(model_from_weights(config, weights))
        behavior = compare_behavior(ours, theirs, tokens=tokens, greedy=0)
        if behavior.differs:
            cause = find_cause(ours, theirs, tokens, behavior.tolerance)
            assert cause is not None, text
            assert cause.is_full, text
            assert cause.mistakes == (text,) or cause.distance == 0.0, (text, cause)  # or another that is the same
            found += 1
    assert found >= 30 // step


@pytest.mark.parametrize("name", CONFIGS)
def test_mistakes_are_found_from_the_logits_alone(name: str) -> None:
    check_found(name, step=21)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("name", CONFIGS)
def test_every_mistake_is_found_from_the_logits_alone(name: str, part: int) -> None:
    check_found(name, step=3, start=part)


@pytest.mark.parametrize(
    "mistake",
    [
        "the norms of each block are exchanged",
        "blocks 0 and 1 have each other's norms",
        "key/value heads are in reverse order",
        "the base of the rotary embedding is 20000 instead of 10000",
        "the base of the rotary embedding is 1000 instead of 10000",
        "the sliding window is 10",
    ],
)
def test_it_is_one_of_the_known_mistakes(mistake: str) -> None:
    model = trained(CONFIGS["llama"])
    (changed,) = (one for one in mistakes(model.config, model.state_dict()) if one[0] == mistake)
    ours, theirs = GPTRuntime(model), GPTRuntime(model_from_weights(*changed[1:]))
    assert compare_behavior(ours, theirs, tokens=list(range(32)), greedy=0).differs


def test_logits_of_the_next_position_are_named() -> None:
    class Late(BlackBox):
        def logits(self, tokens: Sequence[int]) -> FloatArray:
            return np.roll(super().logits(tokens), 1, axis=0)

    model = trained(CONFIGS["gpt2"])
    cause = find_cause(GPTRuntime(model), Late(model), list(range(20)), 1e-4)
    assert str(cause) == "its logits are one position late: those at i are of i - 1"


def test_two_mistakes_at_once_are_found() -> None:
    model = trained(CONFIGS["llama"])
    config = replace(model.config, activation="geglu", window=None, window_pattern="S")
    theirs = BlackBox(model_from_weights(config, model.state_dict()))
    cause = find_cause(GPTRuntime(model), theirs, list(range(32)), 1e-4)
    assert cause is not None
    assert cause.is_full
    assert set(cause.mistakes) == {"the activation is geglu instead of swiglu", "the sliding window is none"}


def test_a_mistake_that_is_not_known_has_no_cause() -> None:
    model = trained(CONFIGS["llama"])
    weights = {**model.state_dict(), "final_norm.weight": torch.linspace(-1, 1, 32)}
    theirs = BlackBox(model_from_weights(model.config, weights))
    assert find_cause(GPTRuntime(model), theirs, list(range(20)), 1e-4) is None
