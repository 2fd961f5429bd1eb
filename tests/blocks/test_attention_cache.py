"""The cache: attention bit by bit gives what attention at once gives."""

from typing import Any

import pytest
import torch

from normscope.blocks.attention import Attention
from normscope.blocks.cache import LayerCache
from normscope.blocks.rotary import Rotary
from normscope.errors import CacheError, NormscopeError, ShapeError
from tests.blocks.test_attention import FORMS, HEADS, WIDTH, every_form, made
from tests.support import every_refusal, randn


def cache_for(attention: Attention, batch: int = 2, capacity: int = 10) -> LayerCache:
    return LayerCache(batch, attention.kv_heads, capacity, attention.head_dim, attention.q.weight.detach())


@every_form
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5], [3, 1, 1, 4], [8, 1], [1, 8]], ids=str)
def test_chunks_give_what_the_whole_gives(form: str, chunks: list[int]) -> None:
    attention, x = made(**FORMS[form]), randn(2, 9, WIDTH)
    cache = cache_for(attention)
    with torch.no_grad():
        parts = [attention(part, cache=cache) for part in x.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), attention(x), rtol=1e-10, atol=1e-12)
    assert cache.length == 9
    assert not cache.keys[:, :, 9:].any()


def test_a_cache_serves_with_gradients_on_too() -> None:
    attention, x = made(), randn(2, 4, WIDTH)
    cache = cache_for(attention)
    parts = [attention(part, cache=cache) for part in x.split([3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), attention(x), rtol=1e-10, atol=1e-12)


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    attention = made()
    cache = cache_for(attention, capacity=3)
    with torch.no_grad():
        attention(randn(2, 2, WIDTH), cache=cache)
        before = cache.keys.clone()
        with pytest.raises(CacheError, match="capacity 3 tokens, length 2, 2 new tokens"):
            attention(randn(2, 2, WIDTH), cache=cache)
    assert cache.length == 2
    assert torch.equal(cache.keys, before)


def ask(batch: int = 2, tokens: int = 3, mask: Any = None, cache: Any = None, **options: Any) -> Any:
    def call() -> None:
        attention = Attention(WIDTH, HEADS, **options)
        attention(torch.zeros(batch, tokens, WIDTH), mask=mask, cache=cache_for(attention) if cache is None else cache)

    return call


LIKE = torch.zeros(0)


@every_refusal(
    ("full", CacheError, "capacity 10 tokens, length 0, 11 new tokens", ask(tokens=11)),
    ("batch", CacheError, r"batch, heads, head size \(2, 4, 4\), but got \(3, 4, 4\)", ask(batch=3)),
    ("heads", CacheError, r"\(2, 2, 4\), but got \(2, 4, 4\)", ask(cache=LayerCache(2, 2, 10, 4, LIKE))),
    ("head-size", CacheError, r"\(2, 4, 8\), but got", ask(cache=LayerCache(2, 4, 10, 8, LIKE))),
    ("type", CacheError, "torch.float64, but got torch.float32", ask(cache=LayerCache(2, 4, 10, 4, LIKE.double()))),
    ("both-ways", CacheError, "a KV cache requires causal attention", ask(causal=False)),
    ("mask", CacheError, "a KV cache cannot be combined with a mask", ask(mask=torch.ones(2, 3).bool())),
    ("not-one", CacheError, "a LayerCache, but got int", ask(cache=3)),
    ("rotary", ShapeError, "position 3 is out of range", ask(tokens=4, rotary=Rotary(4, 3))),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
