"""The rows of a cache: views, copies, lengths of their own, and where they lie in memory."""

import pytest
import torch

from normscope.blocks.cache import ALIGNMENT, LayerCache
from normscope.blocks.rotary import Rotary
from tests.blocks.test_attention import FORMS, WIDTH, every_form, made
from tests.support import randn

LIKE = torch.zeros(0, dtype=torch.float64)


def unequal() -> LayerCache:
    """Three rows that remember 2, 5 and 0 tokens."""
    cache = LayerCache(3, 4, 8, 4, LIKE)
    for i, length in ((0, 2), (1, 5)):
        keys = randn(1, 4, length, 4, seed=i)
        cache.row(i).append(keys, keys + 1)
    return cache


def test_a_row_is_a_view() -> None:
    cache = unequal()
    assert cache.lengths == (2, 5, 0)
    assert torch.equal(cache.keys[1:2, :, :5], randn(1, 4, 5, 4, seed=1))
    row = cache.row(2)
    assert (row.batch, row.length, row.start, row.capacity) == (1, 0, 0, 8)
    keys, _ = row.append(randn(1, 4, 3, 4, seed=7), randn(1, 4, 3, 4, seed=8))
    assert torch.equal(cache.keys[2:, :, :3], keys)
    assert cache.lengths == (2, 5, 3)
    assert cache.start == (2, 5, 3)
    assert row.row(0).length == 3


def test_all_rows_together() -> None:
    cache, before = unequal(), unequal()
    new = randn(3, 4, 2, 4, seed=3)
    keys, values = cache.append(new, new - 1)
    assert keys.shape == (3, 4, 7, 4)
    for i, length in enumerate(before.lengths):
        assert torch.equal(keys[i, :, :length], before.keys[i, :, :length])
        assert torch.equal(keys[i, :, length : length + 2], new[i])
        assert torch.equal(values[i, :, length : length + 2], new[i] - 1)
        assert not keys[i, :, length + 2 :].any()
    assert cache.lengths == (4, 7, 2)


def test_equal_rows_have_one_start_however_they_became_equal() -> None:
    cache = unequal()
    cache.row(1).truncate(2)
    assert cache.lengths == (2, 2, 0)
    cache.row(2).append(randn(1, 4, 2, 4), randn(1, 4, 2, 4))
    assert cache.start == cache.length == 2
    assert made()._visible(1, cache.start, None, LIKE.device) is None  # and need no mask, so that they are fast


def test_chosen_rows_are_copies() -> None:
    cache = unequal()
    chosen = cache.select([1, 0, 1])
    assert chosen.lengths == (5, 2, 5)
    assert torch.equal(chosen.keys, cache.keys[[1, 0, 1]])
    assert torch.equal(chosen.values, cache.values[[1, 0, 1]])
    chosen.row(0).truncate(0)
    chosen.keys[2] = 7.0
    assert cache.lengths == (2, 5, 0)
    assert torch.equal(cache.keys, unequal().keys)


def test_rewinding_clears() -> None:
    cache = unequal()
    cache.row(1).truncate(3)
    assert cache.lengths == (2, 3, 0)
    assert cache.keys[1, :, :3].all()
    assert not cache.keys[1, :, 3:].any()
    assert not cache.values[1, :, 3:].any()
    assert torch.equal(cache.keys[0], unequal().keys[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("capacity", "head_dim"), [(7, 6), (5, 1), (16, 8)])
def test_every_head_of_every_row_begins_at_a_border(dtype: torch.dtype, capacity: int, head_dim: int) -> None:
    cache = LayerCache(3, 4, capacity, head_dim, LIKE.to(dtype))
    for tensor in (cache.keys, cache.values):
        assert tensor.shape == (3, 4, capacity, head_dim)
        assert {tensor[i, h].data_ptr() % ALIGNMENT for i in range(3) for h in range(4)} == {0}


@pytest.mark.parametrize("made_inside", [True, False])
def test_a_row_that_was_taken_in_inference_mode_serves_outside(made_inside: bool) -> None:
    attention, x = made(), randn(1, 5, WIDTH)
    with torch.inference_mode(made_inside):
        cache = LayerCache(2, 4, 8, 4, attention.q.weight)
        row = cache.row(1)
        attention(x[:, :3], cache=row)
    with torch.inference_mode(not made_inside):
        y = attention(x[:, 3:], cache=row)
    torch.testing.assert_close(y, attention(x)[:, 3:])
    assert cache.lengths == (0, 5)


@every_form
def test_attention_gives_each_row_what_it_gets_alone(form: str) -> None:
    attention, x = made(**FORMS[form]), randn(3, 9, WIDTH)
    cache = LayerCache(3, attention.kv_heads, 10, attention.head_dim, attention.q.weight.detach())
    with torch.no_grad():
        whole = attention(x)
        for i, length in enumerate((4, 1, 6)):
            attention(x[i : i + 1, :length], cache=cache.row(i))
        for step in range(3):
            new = torch.stack([x[i, length + step : length + step + 1] for i, length in enumerate((4, 1, 6))])
            wanted = torch.stack([whole[i, length + step : length + step + 1] for i, length in enumerate((4, 1, 6))])
            torch.testing.assert_close(attention(new, cache=cache), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_turns_each_row_from_its_own_place(dtype: torch.dtype) -> None:
    rotary, x = Rotary(8, 16).to(dtype), randn(3, 4, 2, 8, dtype=dtype)
    y = rotary(x, (0, 12, 5))
    for i, start in enumerate((0, 12, 5)):
        assert torch.equal(y[i : i + 1], rotary(x[i : i + 1], start))
