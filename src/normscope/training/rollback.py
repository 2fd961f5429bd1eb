"""How often a run that meets numbers which are not finite goes back, and to which checkpoint."""

from collections.abc import Sequence

MOST_REWINDS = 10
"""How often a run goes back without getting past the fault."""
TRIES = 5
"""How often from the newest checkpoint; then from the one before, for the newest may have been hopeless already."""


class Rewinds:
    """The rewinds since a run last got further than it had ever been.

    >>> rewinds = Rewinds()
    >>> [rewinds.back_to([20, 30], fault_step=34) for _ in range(6)]
    [30, 30, 30, 30, 30, 20]
    >>> rewinds.saved(30)   # that far it had come before
    >>> rewinds.count
    6
    >>> rewinds.saved(40)
    >>> rewinds.count
    0
    """

    def __init__(self) -> None:
        self.count = 0
        self._fault_step = 0

    def back_to(self, checkpoints: Sequence[int], fault_step: int) -> int | None:
        """The step to go back to after a fault in a step; None is the beginning."""
        self.count += 1
        self._fault_step = max(self._fault_step, fault_step)
        if not checkpoints:
            return None
        return checkpoints[-2] if self.count == TRIES + 1 and len(checkpoints) > 1 else checkpoints[-1]

    def saved(self, step: int) -> None:
        """A checkpoint is whole; if the fault lies behind it, what comes next is another one."""
        if step >= self._fault_step:
            self.count = 0
