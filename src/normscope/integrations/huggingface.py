"""X-ray the first steps of a transformers `Trainer`."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from normscope.diagnostics.probe import Xray
from normscope.integrations.first_steps import FirstSteps


class XrayCallback(TrainerCallback):
    """X-ray the first steps of a `Trainer`, and print what is wrong.

    >>> callback = XrayCallback(steps=20)  # Trainer(model, args, callbacks=[callback]).train()

    `callback.xray` has the record afterwards, as after `with normscope.xray(model)`.

    Args:
        steps: the number of optimizer steps.
        save: where to save the x-ray, as .html or .json; None for nowhere.
    """

    def __init__(self, steps: int = 20, *, save: str | Path | None = None) -> None:
        self._first = FirstSteps(steps, save)

    @property
    def xray(self) -> Xray | None:
        """The x-ray; None before training."""
        return self._first.xray

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer, loader = kwargs.get("optimizer"), kwargs.get("train_dataloader")
        self._first.begin(kwargs["model"], state.global_step, [optimizer], loader, "Trainer")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._first.is_over(state.global_step):
            self._first.end(show=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first.end(show=state.is_world_process_zero)
