"""Shapes of predictions and targets that do not belong together, and how tensors were selected."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_PICKS = {"IndexBackward0", "IndexSelectBackward0", "GatherBackward0"}
_MAX_STEPS_BACK = 6


def broadcasts(x: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether two shapes have as many values, but another number of axes, and broadcast to more values.

    >>> broadcasts((8, 1), (8,)), broadcasts((8, 1), (8, 1)), broadcasts((8, 1), (1, 8))
    (True, False, False)
    """
    if math.prod(x) != math.prod(target) or len(x) == len(target):
        return False
    try:
        shape: tuple[int, ...] = torch.broadcast_shapes(x, target)
    except RuntimeError:
        return False
    return math.prod(shape) > math.prod(x)


def is_transposed(flattened: tuple[int, ...], target: Tensor) -> bool:
    """Whether rows are flattened from (time, batch, classes), and their targets from (batch, time), or the reverse."""
    targets = target._base
    if target.dim() != 1 or targets is None or targets.dim() != 2 or len(flattened) != 3:
        return False
    return flattened[0] != flattened[1] and flattened[:2] == tuple(targets.shape[::-1])


def is_picked(tensor: Tensor) -> bool:
    """Whether a tensor was picked from another one by indices, in one of the last operations."""
    nodes = [tensor.grad_fn]
    for _ in range(_MAX_STEPS_BACK):
        if any(node is not None and node.name() in _PICKS for node in nodes):
            return True
        nodes = [before for node in nodes if node is not None for before, _ in node.next_functions][:8]
    return False


def has_integers(indices: Sequence[Any]) -> bool:
    """Whether elements are picked by tensors of integers, as the log-probabilities of labels are."""
    found = [i for index in indices for i in (index if isinstance(index, tuple) else (index,))]
    return any(isinstance(i, Tensor) and i.dtype in (torch.int64, torch.int32) for i in found)
