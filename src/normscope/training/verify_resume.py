"""Proof, for a user's own run, that going on after a kill gives the bits that going straight on would have given."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normscope.checks import short_repr
from normscope.data.corpus import TOKENIZER_NAME
from normscope.errors import CheckpointError, DtypeError
from normscope.runs import checksummed_folder as sealed
from normscope.runs.manifest import MANIFEST
from normscope.runs.run import CONFIG, Run
from normscope.storage.files import make_folder
from normscope.storage.safe_folder import OwnFolder

STEPS = 6
"""How many steps each half of the proof has."""


@dataclass(frozen=True)
class Proof:
    """What came of it.

    Args:
        begin, end: between which steps.
        different: the files of the last checkpoint that are not the same; none if the proof holds.
    """

    begin: int
    end: int
    different: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.different

    def __str__(self) -> str:
        span = f"steps {self.begin} to {self.end}"
        if self.holds:
            return f"{span}: straight, and with a kill in between: every bit of weights, optimiser and chance is alike"
        return f"{span}: NOT the same: {', '.join(self.different)}"


def prove_resume(run: Run, tell: Callable[[str], object] = lambda _: None) -> Proof:
    """Train twice from one checkpoint, in copies: straight, and stopped half way, killed at random and resumed.

    The run itself is only read. A run that is at its end is proven from an earlier checkpoint, or from its beginning.
    """
    if not isinstance(run, Run):
        raise DtypeError(f"what is proven is a Run's, but got {short_repr(run)}\nfix: Run.open(folder)")
    begin, half = _span(run)
    end = begin + 2 * half
    with tempfile.TemporaryDirectory(prefix="normscope-verify-") as place:
        straight, broken = _copy(run, Path(place) / "straight", begin), _copy(run, Path(place) / "broken", begin)
        tell(f"straight from step {begin} to {end}")
        seconds = _resume(straight, end)
        tell(f"the same to step {begin + half}, saved")
        _resume(broken, begin + half)
        tell(f"on from there, killed with no warning (kill -9) within {seconds:.0f} s")
        _resume(broken, end, kill_after=random.uniform(0.2, 0.9) * seconds)
        tell(f"on from the last checkpoint to step {end}")
        _resume(broken, end)
        return Proof(begin, end, tuple(_differences(straight, broken, end)))


def _span(run: Run) -> tuple[int, int]:
    """The checkpoint to begin from, 0 for none, and how many steps each half has."""
    steps = run.config.train.steps
    begins = [step for step in [0, *run.checkpoints.steps()] if steps - step >= 2]
    if not begins:
        raise CheckpointError(f"{run.folder} has {steps} steps in all, and the proof needs two\nfix: a run with more")
    roomy = [step for step in begins if steps - step >= 2 * STEPS]
    begin = max(roomy or begins)
    return begin, min(STEPS, (steps - begin) // 2)


def _copy(run: Run, folder: Path, begin: int) -> Run:
    """The run as it was at a step: to the byte, for its checkpoints are bound to its config.json."""
    make_folder(folder)
    for name in (CONFIG, TOKENIZER_NAME, MANIFEST):
        OwnFolder(folder).write(name, run.inside.read(name))
    if not Path(run.config.corpus).is_absolute():
        place = folder / run.config.corpus
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run.corpus().folder, place, copy_function=_link_or_copy)
    if begin:
        facts = run.checkpoints.state(begin)
        shutil.copytree(run.checkpoints.path(begin), folder / "checkpoints" / run.checkpoints.path(begin).name)
        with run.inside.open(run.metrics.name) as file:
            OwnFolder(folder).write(run.metrics.name, file.read(facts.metrics_bytes))
    return Run.open(folder)


def _link_or_copy(source: str, target: str) -> None:
    """The tokens, which are only read, under a second name; or a copy of them on another disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)


def _resume(run: Run, until: int, kill_after: float | None = None) -> float:
    """Go on in a process of its own, which is killed after so many seconds if that is asked for."""
    start = time.monotonic()
    command = [sys.executable, "-m", "normscope", "resume", str(run.folder), "--until", str(until)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
    try:
        _, errors = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return time.monotonic() - start
    except BaseException:  # Ctrl-C: nobody is left behind who writes into a folder that is about to go
        process.kill()
        process.communicate()
        raise
    if process.returncode not in (0, -signal.SIGKILL):
        words = errors.decode(errors="replace").strip().removeprefix("error: ")
        raise CheckpointError(f"the run cannot go on: {words}")
    return time.monotonic() - start


def _differences(one: Run, other: Run, step: int) -> list[str]:
    """The files of two checkpoints of tensors that differ; the facts hold times, which do."""
    sums = [sealed.checksums(run.checkpoints.path(step)) for run in (one, other)]
    names = sorted(name for name in {*sums[0], *sums[1]} if name.endswith(".safetensors"))
    return [name for name in names if sums[0].get(name) != sums[1].get(name)]
