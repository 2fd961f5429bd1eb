"""What a record stores of the other ranks of torch.distributed: what each one did, and where they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.render.formatting import join_words


@dataclass(frozen=True)
class RankRecord:
    """What one rank did during the x-ray.

    Args:
        rank: its number.
        batches, backward_passes, steps: forward passes of the model, backward passes and optimizer steps.
        training: mode of the model in its first pass; None if it did not run.
        loss: its last loss, if it was a cross-entropy; None otherwise.
        data: checksum of the inputs of its first pass; "" if they are unknown.
        passes_outside: forward passes with gradients that did not go through DistributedDataParallel.
        passes_unsynced: forward passes within no_sync().
    """

    rank: int
    batches: int
    backward_passes: int
    steps: int
    training: bool | None
    loss: float | None
    data: str
    passes_outside: int = 0
    passes_unsynced: int = 0


@dataclass(frozen=True)
class RankDifference:
    """Something in which ranks differ, or, for `data`, in which they should and don't.

    Args:
        kind: `weights`, `buffers`, `running-statistics`, `gradients`, `shapes`, `hyperparameters`, `steps`, `modes` or
            `data`.
        name: full name of the parameter, buffer or module, or name of the hyperparameter; "" for the model.
        ranks: the ranks, in groups of equal ones.
        values: for each group, the value, or its rms for tensors, as text.
        difference: rms of the largest difference over the rms of the values; for running statistics, in standard
            deviations; None if it is no tensor.
        since: when it began, as far as known.
    """

    kind: str
    name: str
    ranks: tuple[tuple[int, ...], ...]
    values: tuple[str, ...]
    difference: float | None = None
    since: str = ""


@dataclass(frozen=True)
class RanksRecord:
    """A comparison of the ranks that took an x-ray at the same time.

    Args:
        rank: the rank of this record.
        wrapper: what distributes the model: `DistributedDataParallel`, `fully_shard`, or "" for nothing.
        expected: the ranks that the model is distributed over.
        members: the ranks that answered, this one among them.
        compared: number of parameters and buffers that were compared.
        differences: where they differ.
    """

    rank: int
    wrapper: str
    expected: tuple[int, ...]
    members: tuple[RankRecord, ...]
    compared: int = 0
    differences: tuple[RankDifference, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that did not answer."""
        answered = {member.rank for member in self.members}
        return tuple(rank for rank in self.expected if rank not in answered)


def list_ranks(ranks: Sequence[int]) -> str:
    """Name ranks.

    >>> list_ranks([1]), list_ranks([0, 1, 2])
    ('rank 1', 'ranks 0, 1 and 2')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {join_words([str(rank) for rank in ranks])}"
