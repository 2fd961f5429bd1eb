"""The checkpoints of a run: one checksummed folder per saved step. The last two and the best are kept."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor

from normscope.data.corpus import Sha256
from normscope.errors import ArgumentTypeError, CheckpointError
from normscope.ops.finite import is_finite
from normscope.runs.checksummed_folder import MANIFEST_NAME, ChecksummedFolder, is_complete, write_folder
from normscope.runs.metrics_file import check_metrics
from normscope.runtime.ranks import ALONE, Ranks
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat, JsonSource, StrictStruct, to_json_bytes
from normscope.storage.safe_folder import SafeFolder
from normscope.storage.tensor_spec import TensorSpec

MAX_RANKS = 2**20
KEEP_LAST = 2
"""Number of newest checkpoints to keep: the current one and one to fall back to."""
BEST_NAME, BEST_FORMAT = "best.json", FileFormat(1)
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
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1


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
        return sorted(int(name) for name in self._names() if is_complete(self._folder / name))

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

    def check_metrics(self, path: Path) -> None:
        """Raise if a metrics.jsonl changed since the last checkpoint was saved."""
        while (last := self.last()) is not None:
            try:
                state = self.state(last)
                check_metrics(path, state.metrics_bytes, state.metrics_sha256)
                return
            except CheckpointError:
                if self.last() == last:  # otherwise a training process just deleted it
                    raise

    def resolve(self, checkpoint: str | int) -> int:
        """The step of a checkpoint: "best", "last" or a saved step; there must be at least one checkpoint."""
        if isinstance(checkpoint, bool) or not isinstance(checkpoint, str | int):
            raise ArgumentTypeError(f"checkpoint must be 'best', 'last' or a step number, but got {checkpoint!r:.60}")
        steps = self.steps()
        if checkpoint == "best":
            return self._resolve_best(steps)
        if checkpoint == "last":
            return steps[-1]
        if re.fullmatch(r"[0-9]{1,15}", str(checkpoint)) and int(checkpoint) in steps:
            return int(checkpoint)
        raise CheckpointError(
            f"{self._folder.parent} has no checkpoint {str(checkpoint)!r}\n"
            f"fix: choose one of best, last, {', '.join(map(str, steps))}"
        )

    def _resolve_best(self, steps: Sequence[int]) -> int:
        """The step marked in best.json; the last one before the first validation."""
        best, fix = self.marked_best(), f"--checkpoint last, or one of {', '.join(map(str, steps))}"
        path = self.folder / BEST_NAME
        if best is not None and best not in steps:
            raise CheckpointError(f"{path} names step {best}, which has no checkpoint\nfix: {fix}")
        if not self._folder.has(BEST_NAME) and self.state(steps[-1]).best is not None:
            raise CheckpointError(f"{path} is missing although the run was validated\nfix: {fix}")
        return steps[-1] if best is None else best

    def path(self, step: int) -> Path:
        return self.folder / _name(step)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        ranks: Ranks = ALONE,
    ) -> None:
        """Write a checkpoint, then delete old ones."""
        write_folder(self._folder / _name(step), tensors, state, self._config_sha256, ranks)
        if ranks.is_main:
            self._drop_old()

    def mark_best(self, step: int | None, loss: float | None) -> None:
        self._folder.create()
        self._write_best(step, loss)
        self._drop_old()

    def open(self, step: int) -> ChecksummedFolder:
        """Open the checkpoint of a step; raises if it is damaged or belongs to another run."""
        return ChecksummedFolder(self._folder / _name(step), self._config_sha256)

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

    def tensors(
        self,
        step: int,
        expected: Mapping[str, Mapping[str, TensorSpec]],
        only: Mapping[str, Collection[str]] | None = None,
        ranks: Ranks = ALONE,
    ) -> dict[str, dict[str, Tensor]]:
        """Load the expected groups of tensors; raises if they have other shapes, or if a weight is not finite.

        `only` are the tensors to load of some groups, if not all. The `ranks` that load them verify the files together.
        """
        with self.with_alternatives(step):
            folder = self.open(step)
            if ranks.size > 1:
                folder.verify(ranks)
            tensors = {
                group: folder.tensors(group, specs, (only or {}).get(group)) for group, specs in expected.items()
            }
            for name, tensor in tensors["model"].items():
                if not is_finite(tensor):
                    raise CheckpointError(f"{self.path(step)} has non-finite values in {name}")
        return tensors

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
            self._write_best(None, None)
        for name in self._names():
            if int(name) > step or not is_complete(self._folder / name):
                self._remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names() if name.isdecimal() and name == _name(int(name))]

    def _read_best(self) -> BestCheckpoint | None:
        if not self._folder.has(BEST_NAME):
            return None
        fix = "delete it (a later validation writes it again), or choose a step with --checkpoint"
        source = JsonSource(self.folder / BEST_NAME, fix, CheckpointError)
        return source.parse(self._folder.read(BEST_NAME), BestCheckpoint, checksum=True, file_format=BEST_FORMAT)

    def _write_best(self, step: int | None, loss: float | None) -> None:
        content = {"format": BEST_FORMAT.version, "step": step, "loss": loss}
        self._folder.write(BEST_NAME, to_json_bytes(with_checksum(content)))

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
