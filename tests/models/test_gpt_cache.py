"""Decoding with a KV cache matches the whole forward pass, in any chunks."""

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.errors import CacheError, ConfigError, DtypeError, NormscopeError, ShapeError, TokenError
from normscope.models.gpt import GPT
from tests.models.tiny import CONTEXT, FORMS, VOCABULARY, made, tiny
from tests.pairs import chiefly, every_value
from tests.support import every_refusal, random_tokens, safe_bfloat16, scramble

TOKENS = random_tokens(VOCABULARY, 2, CONTEXT)


@cache
def model_and_logits(form: str) -> tuple[GPT, Tensor]:
    """In float64, so that only a fault and no rounding can make a difference."""
    model = made(form, torch.float64)
    with torch.no_grad():
        return model, model(TOKENS)


def in_chunks(model: GPT, chunks: list[int]) -> Tensor:
    memory = model.new_cache(2)
    with torch.no_grad():
        parts = [model(part, cache=memory) for part in TOKENS[:, : sum(chunks)].split(chunks, dim=1)]
    assert memory.length == sum(chunks)
    return torch.cat(parts, dim=1)


@every_value(form=list(FORMS), prompt={str(length): length for length in range(1, CONTEXT + 1)})
def test_a_prompt_and_then_token_by_token(form: str, prompt: int) -> None:
    model, logits = model_and_logits(form)
    decoded = in_chunks(model, [prompt] + [1] * (CONTEXT - prompt))
    torch.testing.assert_close(decoded, logits, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(list(FORMS)),
    cuts=st.sets(st.integers(1, CONTEXT - 1)),
    length=st.integers(1, CONTEXT),
)
def test_any_chunks(form: str, cuts: set[int], length: int) -> None:
    model, logits = model_and_logits(form)
    borders = [0, *sorted(cut for cut in cuts if cut < length), length]
    chunks = [after - before for before, after in itertools.pairwise(borders)]
    torch.testing.assert_close(in_chunks(model, chunks), logits[:, :length], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["batch", "power"])
def test_running_statistics_in_eval_mode_can_be_cached(norm: str) -> None:
    model = GPT(tiny("llama", norm=norm, allow_future_leak=True)).double()
    scramble(model)
    model(TOKENS)  # gives the running statistics something to remember
    with pytest.raises(CacheError, match=r"updates its statistics on every call in training(?s:.*)call eval\(\) first"):
        model(TOKENS, cache=model.new_cache(2))
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(in_chunks(model, [4, 1, 5]), model(TOKENS), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("place", ["norm", "qk_norm"])
def test_norms_across_tokens_cannot_be_cached(place: str) -> None:
    scope = "b [s] d" if place == "norm" else "b [s] h e"
    model = GPT(tiny("llama", allow_future_leak=True, **{place: NormSpec(scope, affine=None)})).eval()
    with pytest.raises(CacheError, match="depend on later tokens"):
        model(TOKENS, cache=model.new_cache(2))


def test_autocast_with_a_cache() -> None:
    model = made("llama")
    memory = model.new_cache(2)
    with safe_bfloat16(), torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        whole = model(TOKENS)
        parts = [model(part, cache=memory) for part in TOKENS.split([6, 1, 3], dim=1)]
    assert whole.dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0.1, atol=0.1)


@pytest.mark.exhaustive  # test_model_runner generates with a compiled model
@pytest.mark.slow
@pytest.mark.parametrize("calls", chiefly([[[4, 2, 1]]], [[[4, 1, 1], [7, 2]]]), ids=["one", "two"])
def test_decoding_can_be_traced_whole(calls: list[list[int]]) -> None:
    """Prompts of several lengths, and then a few tokens: no graph break, and no flag that became a symbol."""
    torch.compiler.reset()
    model = made("llama", torch.float64, depth=1)
    traced = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        logits = model(TOKENS)
        for chunks in calls:
            memory = model.new_cache(2)
            parts = [traced(part, cache=memory) for part in TOKENS[:, : sum(chunks)].split(chunks, dim=1)]
            torch.testing.assert_close(torch.cat(parts, dim=1), logits[:, : sum(chunks)], rtol=1e-9, atol=1e-9)


def test_a_cache_has_the_requested_capacity() -> None:
    model = made("llama")
    memory = model.new_cache(3, capacity=4)
    assert (memory.capacity, memory.length, len(memory.layers)) == (4, 0, 2)
    assert memory.layers[0].keys.shape == (3, model.kv_heads, 4, model.head_dim)


def test_a_refused_call_does_not_change_the_cache() -> None:
    model, _ = model_and_logits("llama")
    memory = model.new_cache(2, capacity=4)
    with torch.no_grad():
        model(TOKENS[:, :3], cache=memory)
        for wrong, error in (
            (TOKENS[:, :2], CacheError),
            (TOKENS[:1, :1], CacheError),
            (TOKENS[:, :1] + 99, TokenError),
        ):
            with pytest.raises(error):
                model(wrong, cache=memory)
        assert [layer.length for layer in memory.layers] == [3, 3]
        torch.testing.assert_close(model(TOKENS[:, 3:4], cache=memory), model(TOKENS)[:, 3:4])


def ask(memory: Any, tokens: Tensor = TOKENS, **options: Any) -> Any:
    def call() -> Tensor:
        model = GPT(tiny("llama", **options))
        logits: Tensor = model(tokens, cache=memory)
        return logits

    return call


def new(batch: int = 2, capacity: int | None = None, **options: Any) -> Any:
    return GPT(tiny("llama", **options)).new_cache(batch, capacity)


def filled() -> Any:
    memory = new()
    for layer in memory.layers:
        nothing = torch.zeros_like(layer.keys[:, :, :3])
        layer.append(nothing, nothing)
    return memory


@every_refusal(
    ("full", CacheError, "capacity 4 tokens, length 0, 10 new tokens", ask(new(capacity=4))),
    ("context", ShapeError, "13 tokens exceed the model's context of 10", ask(filled())),
    ("batch", CacheError, "the cache was made for batch, heads, head size", ask(new(batch=3))),
    ("heads", CacheError, "the cache was made for batch, heads, head size", ask(new(kv_heads=2))),
    ("shallow", CacheError, r"a cache of 2 layers, but got one of 1; use new_cache\(\)", ask(new(depth=1))),
    ("deep", CacheError, "a cache of 2 layers, but got one of 3", ask(new(depth=3))),
    (
        "type",
        CacheError,
        "dtype torch.float32, but got torch.float64",
        lambda: made("llama").double()(TOKENS, cache=new()),
    ),
    ("not-one", CacheError, "a cache of 2 layers, but got dict", ask({})),
    ("floats", DtypeError, "int64 or int32", ask(new(), TOKENS.float())),
    (
        "mask",
        CacheError,
        "cannot be combined with a mask",
        lambda: made("llama")(TOKENS, cache=new(), mask=TOKENS > -1),
    ),
    ("capacity", CacheError, "capacity=11 exceeds the model's context of 10", lambda: new(capacity=11)),
    ("no-room", ConfigError, "capacity=0 must be", lambda: new(capacity=0)),
    ("nobody", ConfigError, "batch=0 must be", lambda: new(batch=0)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
