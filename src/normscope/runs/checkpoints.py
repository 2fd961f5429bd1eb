"""The checkpoints of a run: one checksummed folder per saved step. The last two and the best are kept."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor

from normscope.data.corpus_record import Sha256
from normscope.errors import CheckpointError
from normscope.runs import checksummed_folder
from normscope.runs.manifest import MANIFEST_NAME
from normscope.storage.files import with_checksum
from normscope.storage.json_files import StrictStruct, convert, parse_json, without_checksum
from normscope.storage.safe_folder import SafeFolder

KEEP_LAST = 2
"""Number of newest checkpoints to keep: the current one and one to fall back to."""
BEST_NAME = "best.json"
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class BestCheckpoint(StrictStruct):
    """Schema of best.json; `step` is None after a rollback dropped the best checkpoint."""

    step: Count | None
    loss: float | None


class CheckpointState(StrictStruct):
    """Schema of a checkpoint's state.json; see `Trainer.state` and the training loop."""

    step: Count
    next_batch: Count
    skipped_batches: list[Count]
    config: dict[str, Any]
    best: float | None
    seconds: Annotated[float, Meta(ge=0)]
    metrics_bytes: Count
    metrics_sha256: Sha256
    environment: dict[str, str]


class Checkpoints:
    """The folder `checkpoints` of a run, with one folder per saved step, such as 00000100.

    Args:
        folder: The folder; created with the first checkpoint.
        config_sha256: Checksum of the run's config.json, which every checkpoint is bound to.
    """

    def __init__(self, folder: Path | SafeFolder, config_sha256: str | None = None) -> None:
        self._folder = SafeFolder.of(folder)
        self._config_sha256 = config_sha256

    @property
    def folder(self) -> Path:
        return self._folder.path

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, in order."""
        return sorted(int(name) for name in self._names() if checksummed_folder.is_complete(self._folder / name))

    def unfinished(self) -> list[int]:
        """Later steps with an incomplete checkpoint."""
        last = self.last()
        return sorted(step for step in map(int, self._names()) if last is None or step > last)

    def last(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """Step with the lowest validation loss so far; None before the first validation."""
        step = self.marked_best()
        return step if step in self.steps() else None

    def marked_best(self) -> int | None:
        """The step named in best.json, whether or not its checkpoint exists."""
        best = self._read_best()
        return None if best is None else best.step

    def has_best_mark(self) -> bool:
        """Whether best.json exists; it does after the first validation."""
        return self._folder.has(BEST_NAME)

    def path(self, step: int) -> Path:
        return self.folder / _name(step)

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Write a checkpoint, then delete old ones."""
        checksummed_folder.write_folder(self._folder / _name(step), tensors, state, self._config_sha256)
        self._drop_old()

    def mark_best(self, step: int | None, loss: float | None) -> None:
        self._folder.create()
        self._folder.write(BEST_NAME, json.dumps(with_checksum({"step": step, "loss": loss})).encode())
        self._drop_old()

    def open(self, step: int) -> checksummed_folder.ChecksummedFolder:
        """Open the checkpoint of a step; raises if it is damaged or belongs to another run."""
        return checksummed_folder.ChecksummedFolder(self._folder / _name(step), self._config_sha256)

    def state(self, step: int) -> CheckpointState:
        """Load the state of a step without its tensors."""
        state = self.open(step).state(CheckpointState)
        if state.step != step:
            raise CheckpointError(f"{self.path(step)} is the checkpoint of step {state.step}\nfix: move it back")
        return state

    def load(self, step: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Load all tensors and the state of a step."""
        with self.with_alternatives(step):
            return self.open(step).load()

    @contextmanager
    def with_alternatives(self, step: int) -> Iterator[None]:
        """Context manager that adds the other available steps to an error."""
        try:
            yield
        except CheckpointError as error:
            others = [str(other) for other in self.steps() if other != step]
            fix = "there is no other checkpoint: start a new run"
            if others:
                fix = f"use another checkpoint ({', '.join(others)}): resume with --from-step, sample with --checkpoint"
            problem = str(error).partition("\nfix: ")[0]
            raise CheckpointError(f"{problem}\nfix: {fix}") from error

    def drop_after(self, step: int) -> None:
        """Delete all checkpoints after a step, and incomplete ones."""
        marked = self.marked_best()
        if marked is not None and marked > step:  # the step will be repeated, and may not be the best then
            self._folder.write(BEST_NAME, json.dumps(with_checksum({"step": None, "loss": None})).encode())
        for name in self._names():
            if int(name) > step or not checksummed_folder.is_complete(self._folder / name):
                self._remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names() if name.isdecimal() and name == _name(int(name))]

    def _read_best(self) -> BestCheckpoint | None:
        if not self._folder.has(BEST_NAME):
            return None
        fix = "delete it (a later validation writes it again), or choose a step with --checkpoint"
        path = str(self.folder / BEST_NAME)
        content = parse_json(self._folder.read(BEST_NAME), dict[str, Any], name=path, fix=fix, error=CheckpointError)
        content = without_checksum(content, name=path, fix=fix, error=CheckpointError)
        return convert(content, BestCheckpoint, name=path, fix=fix, error=CheckpointError)

    def _drop_old(self) -> None:
        steps = self.steps()
        kept = {*steps[-KEEP_LAST:], self.best()}
        for step in steps:
            if step not in kept:
                self._remove(_name(step))

    def _remove(self, name: str) -> None:
        # The manifest first: an interrupted removal must not leave a folder that looks complete.
        (self._folder / name).remove(MANIFEST_NAME)
        self._folder.remove(name)


def _name(step: int) -> str:
    return f"{step:08d}"
