"""Position ids of new tokens, which may start at a different position in each row of a batch."""

import torch
from torch import Tensor

StartPosition = int | tuple[int, ...]
"""The position of the first new token: one number for all rows, or one per row."""


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
