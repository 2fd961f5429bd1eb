"""A run that is killed repeatedly ends with the same bits as an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from tests.pairs import chiefly
from tests.training.forked import finish, start_command, start_forked
from tests.training.small_run import last_sums, new_run, train_alone

STEPS = 12


def begin(run: Run, until: int | None = None) -> BaseProcess:
    return start_forked(train_alone, str(run.folder), until)


def is_writing(run: Run) -> bool:
    """Whether a checkpoint is there that has no manifest yet."""
    if not run.checkpoints.folder.is_dir():
        return False
    folders = [path for path in run.checkpoints.folder.iterdir() if path.name.isdecimal()]
    return any(not (path / "manifest.json").exists() for path in folders)


def kill(process: BaseProcess, run: Run, moment: float, in_a_write: bool) -> None:
    """Kill at a moment, or in the first write after it."""
    deadline = time.monotonic() + moment
    while process.is_alive() and (time.monotonic() < deadline or (in_a_write and not is_writing(run))):
        time.sleep(0.0002)
    assert process.pid is not None
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def without_times(run: Run) -> list[dict[str, object]]:
    different = {"seconds", "tokens_per_second", "path"}
    events = [
        {name: value for name, value in event.items() if name not in different} for event in read_metrics(run.metrics)
    ]
    # Each process tells that it begins.
    return [event for event in events if event["kind"] in ("step", "validation", "signal", "checkpoint")]


@pytest.mark.parametrize("kills", chiefly([2], [20]))
def test_killed_runs_end_with_the_same_bits(tmp_path: Path, kills: int) -> None:
    straight = short_run(tmp_path / "straight")
    finish(begin(short_run(tmp_path / "first"), until=1))  # starts the server, which is not to be timed
    start = time.monotonic()
    finish(begin(straight))
    whole = time.monotonic() - start

    rng = random.Random(0)
    killed, in_a_write, number = 0, 0, 0
    while killed < kills:
        run = short_run(tmp_path / f"broken-{number}")
        number += 1
        while killed < kills and run.checkpoints.last() != STEPS:
            process = begin(run)
            kill(process, run, rng.uniform(0, whole), in_a_write=killed % 2 == 1)
            if process.exitcode == -signal.SIGKILL:
                killed += 1
                in_a_write += is_writing(run)
        finish(begin(run))
        assert last_sums(run) == last_sums(straight)
        assert without_times(run) == without_times(straight)
    assert in_a_write >= max(1, kills // 6), "hardly any kill fell into a write: the test does not test that"


def short_run(folder: Path) -> Run:
    """A run that spends much of its time with writing."""
    folder.mkdir()
    return new_run(folder, steps=STEPS, save_every=2, eval_every=5)


@pytest.mark.exhaustive  # test_verify_resume.py has two of its four processes in the default suite
def test_verify_resume_passes(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=30, save_every=10)
    train_alone(str(run.folder), until=10)
    before = sorted(path.name for path in run.folder.rglob("*"))
    done = _command("resume", str(run.folder), "--verify")
    assert done.returncode == 0, done.stderr
    assert "steps 10 to 22: passed. Weights, optimizer and RNG state are bitwise identical" in done.stdout
    assert sorted(path.name for path in run.folder.rglob("*")) == before


@pytest.mark.parametrize(
    "number", chiefly([signal.SIGTERM], [signal.SIGINT, signal.SIGHUP])
)  # cli/test_train.py interrupts too
def test_a_signal_saves_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    run = new_run(tmp_path, steps=100_000, save_every=0, eval_every=0)
    output, errors = tmp_path / "output", tmp_path / "errors"
    process = start_command(["resume", str(run.folder)], output, errors)
    while not (run.metrics.exists() and '"step": 5,' in run.metrics.read_text()):
        time.sleep(0.05)
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert (process.exitcode, errors.read_text()) == (130, "")
    assert f"normscope resume {run.folder}" in output.read_text()
    steps = [event["step"] for event in read_metrics(run.metrics) if event["kind"] == "step"]
    assert run.checkpoints.last() == steps[-1] == len(steps)
    assert json.loads((run.checkpoints.path(steps[-1]) / "state.json").read_text())["step"] == steps[-1]


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "normscope", *arguments], capture_output=True, text=True, timeout=300)
