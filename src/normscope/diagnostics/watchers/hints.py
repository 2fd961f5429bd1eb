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
        self._stepped: set[int] = set()

    def after_step(self, optimizer: Optimizer) -> None:
        self._stepped.add(id(optimizer))

    def finish(self) -> dict[str, Any]:
        hints = self.watched.hints
        without_step = [one for one in hints.optimizers if id(one) not in self._stepped]
        stats = HintStats(_names(hints.optimizers), _names(without_step), hints.loss_name, hints.batches_per_epoch)
        return {} if stats == HintStats() else {"hints": stats}


def _names(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    return tuple(type(one).__name__ for one in optimizers)
