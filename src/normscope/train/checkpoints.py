"""The checkpoints of a run: one sealed folder for each saved step; the last two and the best are kept."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.errors import CheckpointError
from normscope.files import write_atomically
from normscope.train import sealed

KEPT = 2
"""How many of the newest stay: the one that was just written, and one to fall back to."""


class Checkpoints:
    """The folder `checkpoints` of a run, with a folder such as 00000100 for each step that was saved.

    Args:
        folder: where they are; made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """The steps that were saved whole, in order."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if path.name.isdecimal() and sealed.is_sealed(path)]
        return sorted(int(path.name) for path in found)

    def last(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step with the lowest validation loss so far; None before the first validation."""
        try:
            step = json.loads((self.folder / "best.json").read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return step if step in self.steps() else None

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; only when it is whole do older ones go."""
        sealed.seal(self.path(step), tensors, facts)
        self._drop_old()

    def mark_best(self, step: int, loss: float) -> None:
        write_atomically(self.folder / "best.json", json.dumps({"step": step, "loss": loss}))
        self._drop_old()

    def load(self, step: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Tensors and facts of a step. One that was damaged is refused, and those that are there are named."""
        try:
            return sealed.unseal(self.path(step))
        except CheckpointError as error:
            others = [str(other) for other in self.steps() if other != step]
            instead = f"fix: there are others, at step {' and '.join(others)}" if others else "there is no other one"
            raise CheckpointError(f"{error}\n{instead}") from error

    def forget_after(self, step: int) -> None:
        """Drop what comes after a step from which a run goes on, and what was never finished."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if path.name.isdecimal() and (int(path.name) > step or not sealed.is_sealed(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _drop_old(self) -> None:
        steps = self.steps()
        kept = {*steps[-KEPT:], self.best()}
        for step in steps:
            if step not in kept:
                # The manifest first: a removal that is cut short must not leave a folder that looks whole.
                (self.path(step) / sealed.MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(self.path(step), ignore_errors=True)
