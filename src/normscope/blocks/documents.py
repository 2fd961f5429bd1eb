"""Several documents packed into the rows of a batch: each attends only to itself, and its positions start at 0."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from normscope.blocks.checks import check_tokens
from normscope.errors import ShapeError


@dataclass(frozen=True)
class Documents:
    """The documents of a batch, none of which crosses from one row to the next.

    Args:
        positions: (b, s), the position of each token in its document.
        spans: start and stop of each document among the b * s tokens.
    """

    positions: Tensor
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def at(cls, positions: Tensor, shape: torch.Size) -> Self:
        """Find the documents of a batch of this shape from the positions, which are 0 where a document starts.

        >>> Documents.at(torch.tensor([[0, 1, 2, 0], [0, 0, 1, 2]]), torch.Size((2, 4))).spans
        ((0, 3), (3, 4), (4, 5), (5, 8))
        """
        check_tokens(positions, "the positions of documents", rank=2)
        if positions.shape != shape:
            raise ShapeError(f"positions have shape {tuple(positions.shape)}, but tokens {tuple(shape)}")
        starts = (positions == 0).flatten().nonzero().flatten().tolist()
        steps = positions[:, 1:] - positions[:, :-1]
        if bool(positions[:, 0].any()) or not bool(((steps == 1) | (positions[:, 1:] == 0)).all()):
            raise ShapeError(
                "positions must count 0, 1, 2, ... in each document\n"
                "fix: start each row and each document at 0, for example [[0, 1, 2, 0, 1]]"
            )
        return cls(positions, tuple(zip(starts, [*starts[1:], positions.numel()], strict=True)))
