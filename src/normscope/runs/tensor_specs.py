"""Which tensors a file must hold: their shapes and types, known before any of them is read."""

from collections.abc import Mapping

import torch
from torch import Tensor

Spec = tuple[tuple[int, ...], torch.dtype]


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """What is expected of a file that shall fit these tensors, which may be on the meta device."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
