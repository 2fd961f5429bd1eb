"""An x-ray of the first steps of a training loop that another library runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from normscope import checks
from normscope.diagnostics.probe import Xray


class FirstSteps:
    """Take an x-ray of some steps, print its findings, and save it.

    Args:
        steps: the number of steps.
        save: where to save the x-ray, as .html or .json; None for nowhere.
    """

    def __init__(self, steps: int, save: str | Path | None) -> None:
        checks.check_positive_int(steps=steps)
        self.steps, self._save = steps, save
        self.xray: Xray | None = None
        self._last_step: int | None = None

    def begin(self, model: nn.Module, step: int, optimizers: Iterable[Any], loader: Any, label: str) -> None:
        """Training begins at this step."""
        self.close()  # of a training before, which ended with an error
        inner = [getattr(one, "optimizer", one) for one in optimizers]  # accelerate wraps them
        known = [one for one in inner if isinstance(one, Optimizer)]
        self.xray = Xray(model, label=label, optimizer=known, loader=loader if isinstance(loader, Iterable) else None)
        self.xray.__enter__()
        self._last_step = step + self.steps

    def is_over(self, step: int) -> bool:
        """Whether the x-ray is active, and its last step has been made."""
        return self._last_step is not None and step >= self._last_step

    def close(self, error: BaseException | None = None) -> bool:
        """End the x-ray. Return whether it was active."""
        is_active = self._last_step is not None
        if is_active and self.xray is not None:
            self._last_step = None
            self.xray.__exit__(None if error is None else type(error), error, None)
        return is_active

    def end(self, *, show: bool = True, error: BaseException | None = None) -> None:
        """End the x-ray, if it is active, show the findings and save it."""
        if not self.close(error) or self.xray is None or not show:
            return
        print()  # a progress bar may have left its line open
        self.xray.show(tree=False)
        if self._save is not None:
            self.xray.save(self._save)
            print(f"wrote {self._save}")
