"""The key/value cache: what attention remembers of the tokens before, so that each is computed once.

Every row of a batch has its own length, so that texts of unequal length can be decoded together: each is read into its
own row first, `cache.row(i)`, and then all of them go on, a token each at a time.
"""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from normscope.blocks.checks import autocasts, check_tensor
from normscope.blocks.positions import StartPosition, max_start, position_ids
from normscope.checks import check_positive_int, is_integer
from normscope.errors import CacheError, DtypeError

ALIGNMENT = 64
"""The bytes of a line of the processor's cache, and of its widest vectors."""


class LayerCache:
    """The keys and values of one attention layer, in room that is taken once.

    Gradients do not flow through the cache: it holds numbers and no graph. One that was made in inference mode
    serves outside of it, and the other way round.

    Shapes:
        keys, values: (b, kv_heads, capacity, head_dim), of which row i is filled up to `lengths[i]`.

    Args:
        batch, heads, capacity, head_dim: the sizes above.
        like: a tensor of the type and on the device that the cache shall have.
    """

    def __init__(self, batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> None:
        check_positive_int(batch=batch, heads=heads, capacity=capacity, head_dim=head_dim)
        check_tensor(like, "a cache")
        if not like.is_floating_point():
            raise DtypeError(f"a cache holds floats, but was to be like a tensor of {like.dtype}")
        self.keys = _aligned_zeros(batch, heads, capacity, head_dim, like)
        self.values = _aligned_zeros(batch, heads, capacity, head_dim, like)
        # The lengths of all the rows; a view of one row shares the list and knows where in it its own begins.
        self._counts, self._first = [0] * batch, 0

    @property
    def batch(self) -> int:
        return self.keys.shape[0]

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each row remembers."""
        return tuple(self._counts[self._first : self._first + self.batch])

    @property
    def start(self) -> StartPosition:
        """The place of the next token: one number if the rows are equally long, else one for each."""
        lengths = self.lengths
        for length in lengths:
            if length != lengths[0]:
                return lengths
        return lengths[0]

    @property
    def length(self) -> int:
        """How many tokens are remembered, by all the rows alike."""
        start = self.start
        if isinstance(start, tuple):
            raise CacheError(f"the rows of the cache remember unequal numbers of tokens, {start}; ask for its lengths")
        return start

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest keys and values, (b, kv_heads, s, head_dim); returns all of them, old and new.

        Of rows that are unequally long the shorter ones end with zeros, which no one may look at.
        """
        batch, heads, added, head_dim = keys.shape
        wanted = (self.keys.shape[0], self.keys.shape[1], self.keys.shape[3])
        if (batch, heads, head_dim) != wanted:
            raise CacheError(
                f"the cache was made for batch, heads, head size {wanted}, but got {(batch, heads, head_dim)}; "
                f"make one cache for each batch"
            )
        if keys.dtype != self.keys.dtype and not autocasts(keys.device):
            raise CacheError(f"the cache was made for {self.keys.dtype}, but got {keys.dtype}; make one for this model")
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
        """Count so many more tokens of each row, for the caller to write; returns where the longest row ends now."""
        stop = max_start(self.start) + added
        if stop > self.capacity:
            raise CacheError(
                f"the cache has room for {self.capacity} tokens, holds {stop - added} and cannot take {added} more; "
                f"make a larger one, or start anew with the newest tokens"
            )
        for row_number in range(self._first, self._first + self.batch):
            self._counts[row_number] += added
        return stop

    def row(self, index: int) -> Self:
        """One row, as a cache for a batch of one: a view, so what it is given is in this cache as well."""
        _check_rows((index,), self.batch)
        view = copy.copy(self)
        view.keys, view.values = self.keys[index : index + 1], self.values[index : index + 1]
        view._first = self._first + index
        return view

    def select(self, rows: Sequence[int]) -> "LayerCache":
        """A cache of its own with copies of these rows, in this order: without some, or with one several times."""
        _check_rows(rows, self.batch)
        lengths = self.lengths
        chosen = LayerCache(len(rows), self.keys.shape[1], self.capacity, self.keys.shape[3], self.keys)
        chosen._counts = [lengths[row] for row in rows]
        for new, row in enumerate(rows):
            chosen.keys[new, :, : lengths[row]] = self.keys[row, :, : lengths[row]]
            chosen.values[new, :, : lengths[row]] = self.values[row, :, : lengths[row]]
        return chosen

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens of every row."""
        shortest, longest = min(self.lengths), max(self.lengths)
        if not is_integer(length, least=0) or length > shortest:
            raise CacheError(f"cannot rewind to length={length!r}: a row remembers {shortest} tokens; give 0 to that")
        # Cleared, because a weight of zero would not silence what is left there: 0 * inf is not a number.
        self.keys[:, :, length:longest] = 0
        self.values[:, :, length:longest] = 0
        for row_number in range(self._first, self._first + self.batch):
            self._counts[row_number] = length


class KVCache:
    """One `LayerCache` for each block of a model, with what is said there.

    >>> import torch
    >>> cache = KVCache(layers=2, batch=1, heads=4, capacity=16, head_dim=8, like=torch.empty(0))
    >>> cache.length, cache.capacity, len(cache.layers)
    (0, 16, 2)

    Texts of unequal length: each is read into its own row, and then all go on together.

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

    def __init__(self, layers: int, batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> None:
        check_positive_int(layers=layers)
        self.layers = [LayerCache(batch, heads, capacity, head_dim, like) for _ in range(layers)]

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return self.layers[0].batch

    @property
    def length(self) -> int:
        """How many tokens are remembered, by all the rows alike."""
        return self.layers[0].length

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each row remembers."""
        return self.layers[0].lengths

    @property
    def start(self) -> StartPosition:
        """The place of the next token: one number if the rows are equally long, else one for each."""
        return self.layers[0].start

    @property
    def capacity(self) -> int:
        """How many tokens a row has room for."""
        return self.layers[0].capacity

    def reserve(self, added: int) -> None:
        """Count so many more tokens of each row, for the caller to write."""
        for layer in self.layers:
            layer.reserve(added)

    def row(self, index: int) -> "KVCache":
        """One row, as a cache for a batch of one: a view, so what it is given is in this cache as well."""
        return self._of([layer.row(index) for layer in self.layers])

    def select(self, rows: Sequence[int]) -> "KVCache":
        """A cache of its own with copies of these rows, in this order: without some, or with one several times."""
        return self._of([layer.select(rows) for layer in self.layers])

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens of every row; `cache.row(i).truncate(length)`: of one."""
        for layer in self.layers:
            layer.truncate(length)

    def _of(self, layers: list[LayerCache]) -> "KVCache":
        other = copy.copy(self)
        other.layers = layers
        return other


def _aligned_zeros(batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> Tensor:
    """Zeros, (batch, heads, capacity, head_dim), in which every head of every row begins at a border in memory.

    Libraries for matrices may add in another order where numbers lie otherwise to the borders of vectors; a text's
    numbers must not depend on which row of a batch it has.
    """
    used, step = capacity * head_dim, ALIGNMENT // like.element_size()
    taken = -(-used // step) * step
    with torch.inference_mode(False):  # a tensor that was made in inference mode could not be written to outside
        room = torch.zeros(batch, heads, taken, dtype=like.dtype, device=like.device)
        return room[:, :, :used].view(batch, heads, capacity, head_dim)


def _check_rows(rows: Sequence[int], batch: int) -> None:
    if not rows:
        raise CacheError("a cache has a row at least, but none was chosen; let go of the cache instead")
    for row in rows:
        if not is_integer(row, least=0) or row >= batch:
            raise CacheError(f"the cache has no row {row!r}: there are the rows 0 to {batch - 1}")
