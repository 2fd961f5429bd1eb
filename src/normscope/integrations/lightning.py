"""X-ray the first steps of a Lightning `Trainer`, of `lightning` or `pytorch_lightning`.

>>> from normscope.integrations.lightning import XrayCallback  # doctest: +SKIP
>>> Trainer(callbacks=[XrayCallback(steps=20)]).fit(module)  # doctest: +SKIP
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from normscope.diagnostics.probe import Xray
from normscope.integrations.first_steps import FirstSteps


class _XrayCallback:
    """X-ray the first steps of a `Trainer`, and print what is wrong.

    `callback.xray` has the record afterwards, as after `with normscope.xray(model)`.

    Args:
        steps: the number of steps of each optimizer.
        save: where to save the x-ray, as .html or .json; None for nowhere.
    """

    def __init__(self, steps: int = 20, *, save: str | Path | None = None) -> None:
        super().__init__()
        self._first = FirstSteps(steps, save)

    @property
    def xray(self) -> Xray | None:
        """The x-ray; None before training."""
        return self._first.xray

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        label = f"{type(pl_module).__name__}.fit"
        self._first.begin(pl_module, _steps(trainer), trainer.optimizers, trainer.train_dataloader, label)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        if self._first.is_over(_steps(trainer)):
            self._first.end(show=trainer.is_global_zero)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._first.end(show=trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._first.end(show=trainer.is_global_zero, error=exception)


def _steps(trainer: Any) -> int:
    """Steps so far: `global_step` counts those of each optimizer."""
    return int(trainer.global_step) // max(1, len(trainer.optimizers))


def _callback_class() -> Any:
    """The class of the library that is in use: both names of Lightning may be installed."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)
    try:
        return importlib.import_module(names[0]).Callback
    except ModuleNotFoundError:
        return importlib.import_module(names[1]).Callback


def __getattr__(name: str) -> Any:
    if name != "XrayCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = type(name, (_XrayCallback, _callback_class()), {"__doc__": _XrayCallback.__doc__, "__module__": __name__})
    return globals().setdefault(name, value)
