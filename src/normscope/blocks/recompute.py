"""Compute a tensor again in the backward pass instead of keeping it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def recompute(result: Tensor, function: Callable[..., Tensor], *inputs: Tensor | None) -> Iterator[None]:
    """Context manager: what runs in it does not keep `result` for its backward pass, but calls the function again.

    The inputs are kept: this saves memory if they are kept anyway, as those of an activation are.

    >>> x, kept = torch.randn(3, requires_grad=True), []
    >>> y = x.exp()
    >>> with recompute(y, torch.exp, x):
    ...     z = y.square()
    >>> torch.allclose(torch.autograd.grad(z.sum(), x)[0], 2 * (2 * x).exp())
    True
    """
    if torch.compiler.is_compiling() or not result.requires_grad:
        yield
        return
    storage, known = result.untyped_storage()._cdata, [x if x is None else x.detach() for x in inputs]

    def pack(tensor: Tensor) -> Any:
        is_result = tensor.untyped_storage()._cdata == storage and tensor.numel() == result_size
        return tensor.shape if is_result and tensor.is_contiguous() else tensor

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch.no_grad():
            return function(*known).reshape(packed)

    result_size = result.numel()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
