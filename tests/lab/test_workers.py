"""Whoever runs the trials, the figures are the same; and Ctrl-C leaves nobody behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normscope.lab.trial import Trial, name_of, perform
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.workers import Processes, RayWorkers, Workers

SETTINGS = {**SMALL, "model": {**SMALL["model"], "depth": 1, "width": 16}, "steps": 8, "batch": 2}
TRIALS = [Trial(name_of(train_text), SETTINGS, seed) for seed in (0, 1)]


def figures(workers: Workers) -> list[dict[str, object]]:
    try:
        futures = [workers.start(trial) for trial in TRIALS]
        return [without_times(dict(future.result(timeout=120).figures)) for future in futures]
    finally:
        workers.close()


def without_times(figures: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in figures.items() if "seconds" not in name}


def test_processes_give_the_same_figures_as_this_one() -> None:
    assert figures(Processes(2)) == [without_times(dict(perform(trial).figures)) for trial in TRIALS]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray, about what it finds on the machine
def test_ray_gives_the_same_figures() -> None:
    assert figures(RayWorkers(1)) == [without_times(dict(perform(trial).figures)) for trial in TRIALS]


def test_what_a_trial_raises_comes_back() -> None:
    workers = Processes(1)
    try:
        future = workers.start(Trial(name_of(train_text), {**SETTINGS, "preset": "gpt9"}, 0))
        with pytest.raises(ValueError, match="gpt9"):
            future.result(timeout=120)
    finally:
        workers.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc")
def test_ctrl_c_ends_everything_and_keeps_what_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "normscope", "lab", "run", "rms-like-layer", "--out", str(tmp_path)]
    run = subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob("trials/*.json"))) < 2:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does it: to all of them
    assert run.wait(timeout=30) == 130
    while living(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(list(tmp_path.glob("trials/*.json"))) >= 2
    assert not list(tmp_path.glob("claims/*.json"))


def living(group: int) -> list[str]:
    """The processes of a group that are still at work; those that ended and were not fetched yet do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(path.parent.name)
    return found
