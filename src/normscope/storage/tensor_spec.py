"""Shape and dtype of a tensor, known before its data is read."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor.

    >>> spec = TensorSpec((3, 4), torch.bfloat16)
    >>> spec.nbytes, spec == TensorSpec.of(torch.zeros(3, 4, dtype=torch.bfloat16))
    (24, True)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape, start=self.dtype.itemsize)
