"""The KV cache: keys and values of earlier tokens, so that each token is computed once.

Each row of a batch has its own length, so that sequences of different lengths can be decoded together: prefill each
into its own row, `cache.row(i)`, then decode all rows one token at a time.
"""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from normscope.blocks.checks import autocasts, check_tensor
from normscope.checks import check_positive_int, is_integer
from normscope.errors import CacheError, DtypeError

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector registers."""

StartPosition = int | tuple[int, ...]
"""The position of the first new token: one number for all rows, or one per row."""

Positions = StartPosition | Tensor
"""Where tokens are: the position of the first one, or those of all, (b, s), if rows hold several documents."""


def position_ids(start: StartPosition, count: int, device: torch.device) -> Tensor:
    """Return the position ids of `count` tokens: (s), or (b, s) if rows start at different positions.

    >>> position_ids(3, 2, torch.device("cpu"))
    tensor([3, 4])
    >>> position_ids((3, 0), 2, torch.device("cpu"))
    tensor([[3, 4],
            [0, 1]])
    """
    if isinstance(start, tuple):
        return torch.tensor(start, device=device)[:, None] + torch.arange(count, device=device)
    return torch.arange(start, start + count, device=device)


def max_start(start: StartPosition) -> int:
    """Return the largest start position over the rows."""
    return max(start) if isinstance(start, tuple) else start


class LayerCache:
    """The keys and values of one attention layer, preallocated.

    Gradients do not flow through the cache. A cache made in inference mode can be used outside it, and vice versa.

    Shapes:
        keys, values: (b, kv_heads, capacity, head_dim); row i is filled up to `lengths[i]`.

    Args:
        batch, heads, capacity, head_dim: the sizes above.
        like: a tensor with the dtype and device of the cache.
    """

    def __init__(self, batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> None:
        check_positive_int(batch=batch, heads=heads, capacity=capacity, head_dim=head_dim)
        check_tensor(like, "a cache")
        if not like.is_floating_point():
            raise DtypeError(f"a KV cache needs a floating-point dtype, but got {like.dtype}")
        self.keys = _aligned_zeros(batch, heads, capacity, head_dim, like)
        self.values = _aligned_zeros(batch, heads, capacity, head_dim, like)
        # The lengths of all rows. A view of one row shares the list and stores its offset.
        self._counts, self._first = [0] * batch, 0

    @property
    def batch(self) -> int:
        return self.keys.shape[0]

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens of each row."""
        return tuple(self._counts[self._first : self._first + self.batch])

    @property
    def start(self) -> StartPosition:
        """The position of the next token: one number if all rows have the same length, otherwise one per row."""
        lengths = self.lengths
        for length in lengths:
            if length != lengths[0]:
                return lengths
        return lengths[0]

    @property
    def length(self) -> int:
        """The number of cached tokens, if all rows have the same length."""
        start = self.start
        if isinstance(start, tuple):
            raise CacheError(f"the rows of the cache have different lengths, {start}; use `lengths`")
        return start

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of shape (b, kv_heads, s, head_dim); return all cached keys and values.

        If rows have different lengths, shorter rows end with zeros, which must be masked.
        """
        batch, heads, added, head_dim = keys.shape
        wanted = (self.keys.shape[0], self.keys.shape[1], self.keys.shape[3])
        if (batch, heads, head_dim) != wanted:
            raise CacheError(
                f"the cache was made for batch, heads, head size {wanted}, but got {(batch, heads, head_dim)}; "
                f"make one cache for each batch"
            )
        if keys.dtype != self.keys.dtype and not autocasts(keys.device):
            raise CacheError(f"the cache has dtype {self.keys.dtype}, but got {keys.dtype}; use model.new_cache()")
        start = self.start
        stop = self.reserve(added)
        if isinstance(start, tuple):
            row, place = torch.arange(batch, device=keys.device)[:, None], position_ids(start, added, keys.device)
            self.keys[row, :, place] = keys.detach().to(self.keys.dtype).transpose(1, 2)  # b s h e
            self.values[row, :, place] = values.detach().to(self.values.dtype).transpose(1, 2)
        else:
            self.keys[:, :, start:stop] = keys.detach()
            self.values[:, :, start:stop] = values.detach()
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def reserve(self, added: int) -> int:
        """Extend each row by `added` tokens, for the caller to write; return the new length of the longest row."""
        stop = max_start(self.start) + added
        if stop > self.capacity:
            raise CacheError(
                f"the cache is full: capacity {self.capacity} tokens, length {stop - added}, {added} new tokens; "
                f"use a larger capacity, or a new cache with the most recent tokens"
            )
        for row_number in range(self._first, self._first + self.batch):
            self._counts[row_number] += added
        return stop

    def row(self, index: int) -> Self:
        """Return a view of one row, as a cache for a batch of one. Writing to it writes to this cache."""
        _check_rows((index,), self.batch)
        view = copy.copy(self)
        view.keys, view.values = self.keys[index : index + 1], self.values[index : index + 1]
        view._first = self._first + index
        return view

    def select(self, rows: Sequence[int]) -> "LayerCache":
        """Return a new cache with copies of the given rows, in this order; rows may be dropped or repeated."""
        _check_rows(rows, self.batch)
        lengths = self.lengths
        chosen = LayerCache(len(rows), self.keys.shape[1], self.capacity, self.keys.shape[3], self.keys)
        chosen._counts = [lengths[row] for row in rows]
        for new, row in enumerate(rows):
            chosen.keys[new, :, : lengths[row]] = self.keys[row, :, : lengths[row]]
            chosen.values[new, :, : lengths[row]] = self.values[row, :, : lengths[row]]
        return chosen

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens of every row and discard the rest."""
        shortest, longest = min(self.lengths), max(self.lengths)
        if not is_integer(length, least=0) or length > shortest:
            raise CacheError(
                f"cannot truncate to length={length!r}: a row holds {shortest} tokens"
                f"\nfix: give a length from 0 to {shortest}"
            )
        # Cleared, because an attention weight of 0 does not remove non-finite values: 0 * inf is NaN.
        self.keys[:, :, length:longest] = 0
        self.values[:, :, length:longest] = 0
        for row_number in range(self._first, self._first + self.batch):
            self._counts[row_number] = length


class KVCache:
    """The KV cache of a model: one `LayerCache` per block.

    >>> import torch
    >>> cache = KVCache(layers=2, batch=1, heads=4, capacity=16, head_dim=8, like=torch.empty(0))
    >>> cache.length, cache.capacity, len(cache.layers)
    (0, 16, 2)

    Sequences of different lengths: prefill each into its own row, then decode together.

    >>> from normscope.models.gpt import GPT
    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4)).eval()
    >>> cache = model.new_cache(batch=2)
    >>> with torch.inference_mode():
    ...     _ = model(torch.tensor([[1, 2, 3]]), cache=cache.row(0))
    ...     _ = model(torch.tensor([[4, 5, 6, 7, 8]]), cache=cache.row(1))
    ...     logits = model(torch.tensor([[9], [10]]), cache=cache)
    >>> cache.lengths, logits.shape
    ((4, 6), torch.Size([2, 1, 65]))
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        capacity: int,
        head_dim: int,
        like: Tensor,
        *,
        keeps_tokens: bool = False,
    ) -> None:
        check_positive_int(layers=layers)
        self.layers = [LayerCache(batch, heads, capacity, head_dim, like) for _ in range(layers)]
        # The ids of the cached tokens (b, capacity), for a model whose first layer reads the token before.
        with torch.inference_mode(False):  # see _aligned_zeros
            self.tokens = torch.zeros(batch, capacity, dtype=torch.long, device=like.device) if keeps_tokens else None

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self.layers[0].batch

    @property
    def length(self) -> int:
        """The number of cached tokens, if all rows have the same length."""
        return self.layers[0].length

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens of each row."""
        return self.layers[0].lengths

    @property
    def start(self) -> StartPosition:
        """The position of the next token: one number if all rows have the same length, otherwise one per row."""
        return self.layers[0].start

    @property
    def capacity(self) -> int:
        """The maximum number of tokens per row."""
        return self.layers[0].capacity

    def reserve(self, added: int) -> None:
        """Extend each row by `added` tokens, for the caller to write."""
        for layer in self.layers:
            layer.reserve(added)

    def row(self, index: int) -> "KVCache":
        """Return a view of one row, as a cache for a batch of one. Writing to it writes to this cache."""
        tokens = None if self.tokens is None else self.tokens[index : index + 1]
        return self._of([layer.row(index) for layer in self.layers], tokens)

    def select(self, rows: Sequence[int]) -> "KVCache":
        """Return a new cache with copies of the given rows, in this order; rows may be dropped or repeated."""
        layers = [layer.select(rows) for layer in self.layers]
        return self._of(layers, None if self.tokens is None else self.tokens[list(rows)])

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens of every row. For a single row: `cache.row(i).truncate(length)`."""
        for layer in self.layers:
            layer.truncate(length)

    def last_token(self) -> Tensor:
        """The id of the last token of each row, (b, 1); any id for an empty row."""
        assert self.tokens is not None, "the cache keeps no tokens"
        last = torch.tensor([max(0, length - 1) for length in self.lengths], device=self.tokens.device)
        return self.tokens.gather(1, last[:, None])

    def keep(self, tokens: Tensor) -> None:
        """Keep the ids of new tokens (b, s), before their keys and values are appended."""
        assert self.tokens is not None, "the cache keeps no tokens"
        if tokens.shape[0] != self.batch:
            raise CacheError(
                f"the cache has {self.batch} rows, but got {tokens.shape[0]}; make one cache for each batch"
            )
        for kept, start, new in zip(self.tokens, self.lengths, tokens, strict=True):
            room = kept[start : start + len(new)]  # the layers raise an error if it is too small
            room.copy_(new[: len(room)])

    def _of(self, layers: list[LayerCache], tokens: Tensor | None) -> "KVCache":
        other = copy.copy(self)
        other.layers, other.tokens = layers, tokens
        return other


def _aligned_zeros(batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> Tensor:
    """Return zeros of shape (batch, heads, capacity, head_dim), with every head of every row aligned in memory.

    Matrix libraries may sum in a different order for a different alignment; the results for a sequence must not depend
    on its row.
    """
    used, step = capacity * head_dim, ALIGNMENT // like.element_size()
    taken = -(-used // step) * step
    with torch.inference_mode(False):  # an inference tensor could not be written to outside inference mode
        room = torch.zeros(batch, heads, taken, dtype=like.dtype, device=like.device)
        return room[:, :, :used].view(batch, heads, capacity, head_dim)


def _check_rows(rows: Sequence[int], batch: int) -> None:
    if not rows:
        raise CacheError("rows is empty: select at least one row")
    for row in rows:
        if not is_integer(row, least=0) or row >= batch:
            raise CacheError(f"row {row!r} is out of range: the cache has rows 0 to {batch - 1}")
