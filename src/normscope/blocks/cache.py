"""The key/value cache: what attention remembers of the tokens before, so that each is computed once."""

import torch
from torch import Tensor

from normscope.blocks.checks import autocasts, check_tensor
from normscope.checks import check_positive
from normscope.errors import CacheError, DtypeError


class LayerCache:
    """The keys and values of one attention layer, in room that is taken once.

    Gradients do not flow through the cache: it holds numbers and no graph. One that was made in inference mode
    serves outside of it, and the other way round.

    Shapes:
        keys, values: (b, kv_heads, capacity, head_dim), filled up to `length`.

    Args:
        batch, heads, capacity, head_dim: the sizes above.
        like: a tensor of the type and on the device that the cache shall have.
    """

    def __init__(self, batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> None:
        check_positive(batch=batch, heads=heads, capacity=capacity, head_dim=head_dim)
        check_tensor(like, "a cache")
        if not like.is_floating_point():
            raise DtypeError(f"a cache holds floats, but was to be like a tensor of {like.dtype}")
        with torch.inference_mode(False):  # a tensor that was made in inference mode could not be written to outside
            shape = (batch, heads, capacity, head_dim)
            self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
            self.values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest keys and values, (b, kv_heads, s, head_dim); returns all of them, old and new."""
        batch, heads, added, head_dim = keys.shape
        wanted = (self.keys.shape[0], self.keys.shape[1], self.keys.shape[3])
        if (batch, heads, head_dim) != wanted:
            raise CacheError(
                f"the cache was made for batch, heads, head size {wanted}, but got {(batch, heads, head_dim)}; "
                f"make one cache for each batch"
            )
        if keys.dtype != self.keys.dtype and not autocasts(keys.device):
            raise CacheError(f"the cache was made for {self.keys.dtype}, but got {keys.dtype}; make one for this model")
        stop = self.length + added
        if stop > self.capacity:
            raise CacheError(
                f"the cache has room for {self.capacity} tokens, holds {self.length} and cannot take {added} more; "
                f"make a larger one, or start anew with the newest tokens"
            )
        self.keys[:, :, self.length : stop] = keys.detach()
        self.values[:, :, self.length : stop] = values.detach()
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]


class Cache:
    """One `LayerCache` for each block of a model, with what is said there.

    >>> import torch
    >>> cache = Cache(layers=2, batch=1, heads=4, capacity=16, head_dim=8, like=torch.empty(0))
    >>> cache.length, cache.capacity, len(cache.layers)
    (0, 16, 2)
    """

    def __init__(self, layers: int, batch: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> None:
        check_positive(layers=layers)
        self.layers = [LayerCache(batch, heads, capacity, head_dim, like) for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many tokens are remembered."""
        return self.layers[0].length

    @property
    def capacity(self) -> int:
        """How many tokens there is room for."""
        return self.layers[0].capacity
