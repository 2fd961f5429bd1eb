"""The cache by itself: numbers without a graph, in any mode of torch's, in the room that was asked for."""

from typing import Any

import pytest
import torch

from normscope.blocks.cache import KVCache, LayerCache
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError
from tests.blocks.test_attention import WIDTH, made
from tests.support import every_refusal, randn

LIKE = torch.zeros(0, dtype=torch.float64)


def filled(keys: torch.Tensor) -> LayerCache:
    cache = LayerCache(2, 4, 8, 4, LIKE)
    cache.append(keys, keys + 1)
    return cache


def test_what_goes_in_comes_out() -> None:
    first, second = randn(2, 4, 3, 4), randn(2, 4, 2, 4, seed=1)
    cache = filled(first)
    keys, values = cache.append(second, second + 1)
    assert torch.equal(keys, torch.cat((first, second), dim=2))
    assert torch.equal(values, keys + 1)
    assert (cache.length, cache.capacity) == (5, 8)


def test_no_graph_is_kept() -> None:
    keys = randn(2, 4, 3, 4).requires_grad_() * 2
    cache = filled(keys)
    for tensor in (cache.keys, cache.values, *cache.append(keys, keys)):
        assert not tensor.requires_grad
        assert tensor.grad_fn is None


@pytest.mark.parametrize("made_inside", [True, False])
@pytest.mark.parametrize("first_inside", [True, False])
def test_inference_mode_may_begin_and_end_anywhere(made_inside: bool, first_inside: bool) -> None:
    attention, x = made(), randn(2, 5, WIDTH)
    with torch.inference_mode(made_inside):
        cache = LayerCache(2, 4, 8, 4, attention.q.weight)
    with torch.inference_mode(first_inside):
        attention(x[:, :3], cache=cache)
    with torch.inference_mode(not first_inside):
        y = attention(x[:, 3:], cache=cache)
    torch.testing.assert_close(y, attention(x)[:, 3:])
    assert not cache.keys.is_inference()


def layer(batch: Any, heads: Any, capacity: Any, head_dim: Any, like: Any = LIKE) -> Any:
    return lambda: LayerCache(batch, heads, capacity, head_dim, like)


@every_refusal(
    ("batch", ConfigError, "batch=0 must be", layer(0, 4, 8, 4)),
    ("heads", ConfigError, "heads='a' must be", layer(2, "a", 8, 4)),
    ("capacity", ConfigError, "capacity=-1 must be", layer(2, 4, -1, 4)),
    ("head-size", ConfigError, r"head_dim=1\.5 must be", layer(2, 4, 8, 1.5)),
    ("like", ArgumentTypeError, "a cache takes a tensor, but got str", layer(2, 4, 8, 4, like="cpu")),
    ("like-whole", DtypeError, "a KV cache needs a floating-point dtype", layer(2, 4, 8, 4, like=LIKE.long())),
    ("no-layers", ConfigError, "layers=0 must be", lambda: KVCache(0, 2, 4, 8, 4, LIKE)),
    ("layers", ConfigError, "layers=None must be", lambda: KVCache(None, 2, 4, 8, 4, LIKE)),  # type: ignore[arg-type]
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
