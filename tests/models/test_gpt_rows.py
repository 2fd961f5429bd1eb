"""Sequences of unequal length in one cache: each gets the logits that it gets alone."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.errors import CacheError, NormscopeError, ShapeError
from normscope.models.gpt import GPT
from tests.models.tiny import CONTEXT, FORMS, VOCABULARY, every_form, made, tiny
from tests.support import every_refusal, random_tokens

TOKENS = random_tokens(VOCABULARY, 4, CONTEXT)


@cache
def model_and_logits(form: str) -> tuple[GPT, Tensor]:
    """In float64, so that only a fault and no rounding can make a difference."""
    model = made(form, torch.float64)
    with torch.no_grad():
        return model, model(TOKENS)


def go_on_together(form: str, prompts: list[int], steps: list[int]) -> None:
    """Read each prompt into its row, then some tokens of all the rows at each step; compare with a row by itself."""
    model, logits = model_and_logits(form)
    memory = model.new_cache(len(prompts))
    with torch.no_grad():
        for i, length in enumerate(prompts):
            if length:
                alone = model(TOKENS[i : i + 1, :length], cache=memory.row(i))
                torch.testing.assert_close(alone, logits[i : i + 1, :length], rtol=1e-9, atol=1e-9)
        lengths = list(prompts)
        for step in steps:
            new = torch.stack([TOKENS[i, length : length + step] for i, length in enumerate(lengths)])
            together = model(new, cache=memory)
            for i, length in enumerate(lengths):
                torch.testing.assert_close(together[i], logits[i, length : length + step], rtol=1e-9, atol=1e-9)
            lengths = [length + step for length in lengths]
        assert memory.lengths == tuple(lengths)


@every_form
@pytest.mark.parametrize("prompts", [[3, 1, 5, 2], [0, 6, 1, 0], [4, 4, 4, 4]], ids=str)
def test_token_by_token(form: str, prompts: list[int]) -> None:
    go_on_together(form, prompts, [1, 1, 1, 1])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(list(FORMS)),
    prompts=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 3), max_size=2),
)
def test_any_lengths_and_several_tokens_at_once(form: str, prompts: list[int], steps: list[int]) -> None:
    go_on_together(form, prompts, [min(step, CONTEXT - 5 - sum(steps[:i])) for i, step in enumerate(steps)])


@pytest.mark.parametrize("form", ["gpt2", "nanochat", "llama"])
def test_rows_can_be_removed_and_restarted(form: str) -> None:
    model, logits = model_and_logits(form)
    memory = model.new_cache(4)
    with torch.no_grad():
        for i, length in enumerate((2, 5, 3, 4)):
            model(TOKENS[i : i + 1, :length], cache=memory.row(i))
        memory = memory.select([3, 1, 1])  # rows 0 and 2 leave, and row 1 goes two ways
        memory.row(2).truncate(2)
        assert memory.lengths == (4, 5, 2)
        together = model(torch.stack((TOKENS[3, 4:5], TOKENS[1, 5:6], TOKENS[1, 2:3])), cache=memory)
        wanted = torch.stack((logits[3, 4:5], logits[1, 5:6], logits[1, 2:3]))
        torch.testing.assert_close(together, wanted, rtol=1e-9, atol=1e-9)


def test_truncated_nan_entries_are_not_seen() -> None:
    model, logits = model_and_logits("llama")
    memory = model.new_cache(2)
    with torch.no_grad():
        model(TOKENS[:1, :6], cache=memory.row(0))
        model(TOKENS[1:2, :5], cache=memory.row(1))
        for layer in memory.layers:
            layer.values[1, :, 3] = torch.inf
        memory.row(1).truncate(1)
        together = model(torch.stack((TOKENS[0, 6:7], TOKENS[1, 1:2])), cache=memory)
    torch.testing.assert_close(together, torch.stack((logits[0, 6:7], logits[1, 1:2])), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["gpt2", "nanochat", "llama"])
def test_kernels_support_rows_of_unequal_length(form: str) -> None:
    model, memory = made(form), made(form).new_cache(2)
    with torch.no_grad():
        for i, length in enumerate((2, 5)):
            model(TOKENS[i : i + 1, :length], cache=memory.row(i))
        together = model(torch.stack((TOKENS[0, 2:3], TOKENS[1, 5:6])), cache=memory)
        whole = model(TOKENS)
    torch.testing.assert_close(together, torch.stack((whole[0, 2:3], whole[1, 5:6])), rtol=1e-4, atol=1e-5)


def unequal(capacity: int | None = None, **options: Any) -> tuple[GPT, Any]:
    model = GPT(tiny("llama", **options))
    memory = model.new_cache(2, capacity)
    with torch.no_grad():
        model(TOKENS[:1, :4], cache=memory.row(0))
        model(TOKENS[:1, :1], cache=memory.row(1))
    return model, memory


def go_on(count: int, **options: Any) -> Any:
    def call() -> None:
        model, memory = unequal(**options)
        model(TOKENS[:2, :count], cache=memory)

    return call


@every_refusal(
    ("context", ShapeError, "11 tokens exceed the model's context of 10", go_on(7)),
    ("full", CacheError, "capacity 5 tokens, length 4, 2 new tokens", go_on(2, capacity=5)),
    ("length", CacheError, r"different lengths, \(4, 1\); use `lengths`", lambda: unequal()[1].length),
    ("row", CacheError, "row 2 is out of range: the cache has rows 0 to 1", lambda: unequal()[1].row(2)),
    ("row-before", CacheError, "row -1 is out of range", lambda: unequal()[1].row(-1)),
    ("select", CacheError, "row 5 is out of range", lambda: unequal()[1].select([0, 5])),
    ("select-none", CacheError, "select at least one row", lambda: unequal()[1].select([])),
    ("truncate", CacheError, "truncate to length=2: a row holds 1 tokens", lambda: unequal()[1].truncate(2)),
    ("truncate-before", CacheError, "truncate to length=-1", lambda: unequal()[1].truncate(-1)),
    ("truncate-half", CacheError, r"truncate to length=0\.5", lambda: unequal()[1].truncate(0.5)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_a_norm_across_tokens_cannot_be_cached() -> None:
    assert made("llama").cacheable
    assert not GPT(tiny("llama", norm="instance", allow_future_leak=True)).cacheable
    assert GPT(tiny("llama", norm="batch", allow_future_leak=True)).cacheable  # in eval mode
