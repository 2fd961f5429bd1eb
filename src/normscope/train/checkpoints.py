"""The checkpoints of a run: one sealed folder for each saved step; the last two and the best are kept."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor

from normscope.errors import CheckpointError
from normscope.files import signed, write_atomically
from normscope.json_files import Strict, convert, read_signed
from normscope.train import sealed

KEPT = 2
"""How many of the newest stay: the one that was just written, and one to fall back to."""
_BEST = "best.json"


class _Best(Strict):
    """What best.json says."""

    step: Annotated[int, Meta(ge=0)]
    loss: float


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
        step = self._marked()
        return step if step in self.steps() else None

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; only when it is whole do older ones go."""
        sealed.seal(self.path(step), tensors, facts)
        self._drop_old()

    def mark_best(self, step: int, loss: float) -> None:
        write_atomically(self.folder / _BEST, json.dumps(signed({"step": step, "loss": loss})))
        self._drop_old()

    def load(self, step: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Tensors and facts of a step. One that was damaged is refused, and those that are there are named."""
        try:
            return sealed.unseal(self.path(step))
        except CheckpointError as error:
            others = [str(other) for other in self.steps() if other != step]
            if not others:
                raise CheckpointError(f"{error}\nfix: there is no other one; start a new run") from error
            raise CheckpointError(
                f"{error}\nfix: there are others, at step {' and '.join(others)}: "
                f"go on from one with --from-step, or sample it with --checkpoint"
            ) from error

    def forget_after(self, step: int) -> None:
        """Drop what comes after a step from which a run goes on, and what was never finished."""
        if not self.folder.is_dir():
            return
        marked = self._marked()
        if marked is not None and marked > step:  # the step will come again, and need not be the best then
            (self.folder / _BEST).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name.isdecimal() and (int(path.name) > step or not sealed.is_sealed(path)):
                _remove(path)

    def _marked(self) -> int | None:
        path = self.folder / _BEST
        if not path.exists():
            return None
        fix = "remove it, and the best of those to come will be marked; what is saved is whole"
        content = read_signed(path, fix=fix, error=CheckpointError)
        return convert(content, _Best, name=str(path), fix=fix, error=CheckpointError).step

    def _drop_old(self) -> None:
        steps = self.steps()
        kept = {*steps[-KEPT:], self.best()}
        for step in steps:
            if step not in kept:
                _remove(self.path(step))


def _remove(checkpoint: Path) -> None:
    # The manifest first: a removal that is cut short must not leave a folder that looks whole.
    (checkpoint / sealed.MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
