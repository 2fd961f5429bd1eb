"""Expected shapes and dtypes of the tensors in a file, to check its header before loading."""

from collections.abc import Mapping

import torch
from torch import Tensor

TensorSpec = tuple[tuple[int, ...], torch.dtype]


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Shape and dtype of each tensor; the tensors may be on the meta device."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
