"""The checkpoints of a run: one sealed folder for each saved step; the last two and the best are kept."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor

from normscope.data.corpus_record import Sha256
from normscope.errors import CheckpointError
from normscope.runs import checksummed_folder as sealed
from normscope.runs.manifest import MANIFEST
from normscope.storage.files import signed
from normscope.storage.json_files import Strict, convert, parse_json, unsigned
from normscope.storage.safe_folder import OwnFolder

KEPT = 2
"""How many of the newest stay: the one that was just written, and one to fall back to."""
BEST = "best.json"
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Best(Strict):
    """What best.json says; no step if the best one was forgotten when the run went back before it."""

    step: Count | None
    loss: float | None


class State(Strict):
    """What state.json says of a checkpoint, besides the tensors; see `Trainer.state` and the loop."""

    step: Count
    next_batch: Count
    passed_over: list[Count]
    config: dict[str, Any]
    best: float | None
    seconds: Annotated[float, Meta(ge=0)]
    metrics_bytes: Count
    metrics_sha256: Sha256
    surroundings: dict[str, str]


class Checkpoints:
    """The folder `checkpoints` of a run, with a folder such as 00000100 for each step that was saved.

    Args:
        folder: where they are; made when the first one is saved.
        config: the checksum of the run's config.json, which each of them is bound to.
    """

    def __init__(self, folder: Path | OwnFolder, config: str | None = None) -> None:
        self._inside = folder if isinstance(folder, OwnFolder) else OwnFolder(folder)
        self._config = config

    @property
    def folder(self) -> Path:
        return self._inside.path

    def steps(self) -> list[int]:
        """The steps that were saved whole, in order."""
        return sorted(int(name) for name in self._names() if sealed.is_sealed(self._inside / name))

    def unfinished(self) -> list[int]:
        """Later steps that aren't whole: their saving was cut short, or they lost their manifest since."""
        last = self.last()
        return sorted(step for step in map(int, self._names()) if last is None or step > last)

    def last(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step with the lowest validation loss so far; None before the first validation."""
        step = self.marked()
        return step if step in self.steps() else None

    def marked(self) -> int | None:
        """The step that best.json names, whether or not it is still there."""
        found = self._mark()
        return None if found is None else found.step

    def has_mark(self) -> bool:
        """Whether there is a best.json; there is one after the first validation."""
        return self._inside.has(BEST)

    def path(self, step: int) -> Path:
        return self.folder / _name(step)

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; only when it is whole do older ones go."""
        sealed.seal(self._inside / _name(step), tensors, facts, self._config)
        self._drop_old()

    def mark_best(self, step: int | None, loss: float | None) -> None:
        self._inside.make()
        self._inside.write(BEST, json.dumps(signed({"step": step, "loss": loss})).encode())
        self._drop_old()

    def open(self, step: int) -> sealed.Sealed:
        """The checkpoint of a step, to be read in part; refused if it is damaged or of another run."""
        return sealed.Sealed(self._inside / _name(step), self._config)

    def state(self, step: int) -> State:
        """What is known of a step besides its tensors."""
        state = self.open(step).facts(State)
        if state.step != step:
            raise CheckpointError(f"{self.path(step)} is the checkpoint of step {state.step}\nfix: put it back there")
        return state

    def load(self, step: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """All tensors and facts of a step."""
        with self.explained(step):
            found = self.open(step)
            return {group: found.tensors(group) for group in found.groups}, found.facts(dict[str, Any])

    @contextmanager
    def explained(self, step: int) -> Iterator[None]:
        """For a `with` block that reads a step: an error names the other steps that are there."""
        try:
            yield
        except CheckpointError as error:
            others = [str(other) for other in self.steps() if other != step]
            fix = "there is no other one; start a new run"
            if others:
                fix = (
                    f"there are others, at step {' and '.join(others)}: "
                    f"go on from one with --from-step, or sample it with --checkpoint"
                )
            problem = str(error).partition("\nfix: ")[0]
            raise CheckpointError(f"{problem}\nfix: {fix}") from error

    def forget_after(self, step: int) -> None:
        """Drop what comes after a step from which a run goes on, and what was never finished."""
        marked = self.marked()
        if marked is not None and marked > step:  # the step will come again, and need not be the best then
            self._inside.write(BEST, json.dumps(signed({"step": None, "loss": None})).encode())
        for name in self._names():
            if int(name) > step or not sealed.is_sealed(self._inside / name):
                self._remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._inside.names() if name.isdecimal() and name == _name(int(name))]

    def _mark(self) -> Best | None:
        if not self._inside.has(BEST):
            return None
        fix = "remove it, and the best of those to come will be marked; or name a step with --checkpoint"
        path = str(self.folder / BEST)
        content = parse_json(self._inside.read(BEST), dict[str, Any], name=path, fix=fix, error=CheckpointError)
        content = unsigned(content, name=path, fix=fix, error=CheckpointError)
        return convert(content, Best, name=path, fix=fix, error=CheckpointError)

    def _drop_old(self) -> None:
        steps = self.steps()
        kept = {*steps[-KEPT:], self.best()}
        for step in steps:
            if step not in kept:
                self._remove(_name(step))

    def _remove(self, name: str) -> None:
        # The manifest first: a removal that is cut short must not leave a folder that looks whole.
        (self._inside / name).remove(MANIFEST)
        self._inside.remove(name)


def _name(step: int) -> str:
    return f"{step:08d}"
