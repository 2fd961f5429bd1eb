"""Check on a user's own run that resuming after a kill is bitwise identical to training without interruption."""

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
from normscope.data.tokenizers.template_settings import TOKENIZER_CONFIG
from normscope.errors import ArgumentTypeError, CheckpointError
from normscope.runs import checksummed_folder
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runs.config import CONFIG_NAME
from normscope.runs.extension import write_extension
from normscope.runs.initial_weights import FOLDER_NAME as INITIAL_WEIGHTS
from normscope.runs.run import Run
from normscope.storage.files import make_folder
from normscope.storage.json_files import LARGE_FILE_BYTES
from normscope.storage.safe_folder import SafeFolder

HALF_STEPS = 6
"""Steps in each half of the check."""


@dataclass(frozen=True)
class ResumeCheck:
    """The result of `verify_resume`.

    Args:
        begin, end: First and last step of the check.
        different: Files of the last checkpoint that differ; empty if the check passed.
    """

    begin: int
    end: int
    different: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.different

    def __str__(self) -> str:
        span = f"steps {self.begin} to {self.end}"
        if self.passed:
            return f"{span}: passed. Weights, optimizer and RNG state are bitwise identical with and without a kill"
        return f"{span}: FAILED. These files differ: {', '.join(self.different)}"


def verify_resume(run: Run, log: Callable[[str], object] = lambda _: None) -> ResumeCheck:
    """Train copies of a run twice from one checkpoint: without interruption, and stopped, killed and resumed.

    The run itself is only read. A finished run is checked from an earlier checkpoint, or from the start.

    Args:
        run: The run to check.
        log: Called with a message before each phase.
    """
    if not isinstance(run, Run):
        raise ArgumentTypeError(f"verify_resume expects a Run, but got {short_repr(run)}\nfix: Run.open(folder)")
    begin, half = _span(run)
    end = begin + 2 * half
    with tempfile.TemporaryDirectory(prefix="normscope-verify-") as folder:
        reference = _copy(run, Path(folder) / "reference", begin)
        interrupted = _copy(run, Path(folder) / "interrupted", begin)
        log(f"training from step {begin} to {end} without interruption")
        seconds = _resume(reference, end)
        log(f"training from step {begin} to {begin + half}, then saving")
        _resume(interrupted, begin + half)
        log(f"resuming, then killing the process (kill -9) within {seconds:.0f} s")
        _resume(interrupted, end, kill_after=random.uniform(0.2, 0.9) * seconds)
        log(f"resuming from the last checkpoint to step {end}")
        _resume(interrupted, end)
        return ResumeCheck(begin, end, tuple(_differing_files(reference, interrupted, end)))


def _span(run: Run) -> tuple[int, int]:
    """The checkpoint to start from (0 for the start of the run), and the steps in each half."""
    steps = run.config.train.steps
    begins = [step for step in [0, *run.checkpoints.steps()] if steps - step >= 2]
    if not begins:
        raise CheckpointError(
            f"{run.folder} has {steps} steps, but the check needs at least two\nfix: use a longer run"
        )
    long_enough = [step for step in begins if steps - step >= 2 * HALF_STEPS]
    begin = max(long_enough or begins)
    return begin, min(HALF_STEPS, (steps - begin) // 2)


def _copy(run: Run, folder: Path, begin: int) -> Run:
    """Copy a run as it was at a step, byte for byte: checkpoints are bound to the checksum of config.json."""
    make_folder(folder)
    for name in filter(run.safe_folder.has, (CONFIG_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG, MANIFEST_NAME)):
        SafeFolder(folder).write(name, run.safe_folder.read(name, LARGE_FILE_BYTES))
    if run.extension is not None:
        write_extension(SafeFolder(folder), run.extension)
    if run.config.origin is not None:
        copied = run.folder / INITIAL_WEIGHTS
        shutil.copytree(copied, folder / INITIAL_WEIGHTS, copy_function=_link_or_copy, symlinks=True)
    if run.corpus_folder().is_relative_to(run.folder):
        corpus = folder / run.corpus_folder().relative_to(run.folder)
        corpus.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run.corpus().folder, corpus, copy_function=_link_or_copy)
    if begin:
        state = run.checkpoints.state(begin)
        shutil.copytree(run.checkpoints.path(begin), folder / "checkpoints" / run.checkpoints.path(begin).name)
        with run.safe_folder.open(run.metrics.name) as file:
            SafeFolder(folder).write(run.metrics.name, file.read(state.metrics_bytes))
    return Run.open(folder)


def _link_or_copy(source: str, target: str) -> None:
    """Hard-link a file of tokens or weights, which is only read; copy it if it is on another disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)


def _resume(run: Run, until: int, kill_after: float | None = None) -> float:
    """Resume in a subprocess and return its duration; `kill_after` kills it after this many seconds."""
    start = time.monotonic()
    command = [sys.executable, "-P", "-m", "normscope", "resume", str(run.folder), "--until", str(until)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
    try:
        _, errors = process.communicate(timeout=kill_after)
    except BaseException as error:  # also Ctrl-C: leave no process that writes into a folder about to be deleted
        process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return time.monotonic() - start
        raise
    if process.returncode not in (0, -signal.SIGKILL):
        message = errors.decode(errors="replace").strip().removeprefix("error: ")
        raise CheckpointError(f"the run cannot be resumed: {message}")
    return time.monotonic() - start


def _differing_files(one: Run, other: Run, step: int) -> list[str]:
    """Tensor files that differ between two checkpoints. state.json holds times, so it always differs."""
    sums = [checksummed_folder.checksums(run.checkpoints.path(step)) for run in (one, other)]
    names = sorted(name for name in {*sums[0], *sums[1]} if name.endswith(".safetensors"))
    return [name for name in names if sums[0].get(name) != sums[1].get(name)]
