"""Checksums of the data of a rank: of the inputs of each pass, and of the targets of its cross-entropy."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from normscope.diagnostics.ranks.checksums import checksum

MAX_BATCHES = 64
"""Batches whose data is compared."""


class BatchChecksums:
    """The checksums of the first batches."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.targets: list[str] = []

    def take_inputs(self, tensors: Iterable[Tensor]) -> None:
        if len(self.inputs) < MAX_BATCHES:
            self.inputs.append("-".join(checksum(tensor) for tensor in tensors if _is_plain(tensor)))

    def take_targets(self, targets: object) -> None:
        if len(self.targets) < MAX_BATCHES and isinstance(targets, Tensor) and _is_plain(targets):
            self.targets.append(checksum(targets))


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has values of its own, which its checksum can be computed of."""
    if isinstance(tensor, FakeTensor) or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
