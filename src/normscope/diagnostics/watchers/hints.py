"""Record the hints of the user, and which optimizers stepped."""

from collections.abc import Sequence
from typing import Any

from torch.optim.optimizer import Optimizer

from normscope.diagnostics.stats.hints import HintStats
from normscope.diagnostics.watchers.watcher import Watched, Watcher


class HintWatcher(Watcher):
    """Record what the user said about the training loop, if anything."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._without_step = list(watched.hints.optimizers)

    def after_step(self, optimizer: Optimizer) -> None:
        self._without_step = [one for one in self._without_step if one is not optimizer]

    def finish(self) -> dict[str, Any]:
        hints, without_step = self.watched.hints, _names(self._without_step)
        stats = HintStats(_names(hints.optimizers), without_step, hints.loss_name, hints.batches_per_epoch)
        return {} if stats == HintStats() else {"hints": stats}


def _names(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    return tuple(type(one).__name__ for one in optimizers)
