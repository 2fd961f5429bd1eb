"""Where new tokens stand: after those that came before, of which each row of a batch may have its own number."""

import torch
from torch import Tensor

StartPosition = int | tuple[int, ...]
"""The place of the first new token: one number for all the rows, or one for each."""


def position_ids(start: StartPosition, count: int, device: torch.device) -> Tensor:
    """The places of `count` tokens from there on: (s), or (b, s) if the rows begin at places of their own.

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
    """The place of the first new token in the row that is furthest on."""
    return max(start) if isinstance(start, tuple) else start
