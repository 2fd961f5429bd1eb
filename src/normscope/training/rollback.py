"""Limit how often a run rolls back after a NaN or Inf, and choose the checkpoint to roll back to."""

from collections.abc import Sequence

MAX_ROLLBACKS = 10
"""Rollbacks in a row before the run gives up."""
TRIES_PER_CHECKPOINT = 5
"""Rollbacks to the newest checkpoint before the one before it is used: the newest may be beyond recovery."""


class Rollbacks:
    """Counts the rollbacks since the run last made progress.

    >>> rollbacks = Rollbacks()
    >>> [rollbacks.next_step([20, 30], fault_step=34) for _ in range(6)]
    [30, 30, 30, 30, 30, 20]
    >>> rollbacks.saved(30)   # not beyond the fault: no progress yet
    >>> rollbacks.count
    6
    >>> rollbacks.saved(40)
    >>> rollbacks.count
    0
    """

    def __init__(self) -> None:
        self.count = 0
        self._fault_step = 0

    def next_step(self, checkpoints: Sequence[int], fault_step: int) -> int | None:
        """Count a rollback and return the checkpoint to roll back to; None for the start of the run."""
        self.count += 1
        self._fault_step = max(self._fault_step, fault_step)
        if not checkpoints:
            return None
        return checkpoints[-2] if self.count == TRIES_PER_CHECKPOINT + 1 and len(checkpoints) > 1 else checkpoints[-1]

    def saved(self, step: int) -> None:
        """Note a new checkpoint; one beyond the fault resets the count."""
        if step >= self._fault_step:
            self.count = 0
