"""Workers: the same metrics in processes and on Ray, and a clean end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pytest

from normscope.errors import ConfigError
from normscope.lab.running import workers as workers_module
from normscope.lab.running.trial import LabTrial, TrialResult, function_path, run_trial
from normscope.lab.running.workers import MAX_PER_CORE, MAX_WORKERS, ProcessWorkers, RayWorkers, WorkerConfig, Workers
from normscope.lab.trials.text import SMALL_GPT, train_text
from normscope.runs.lock import locked

SETTINGS = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 8, "batch": 2}
TRIALS = [LabTrial(function_path(train_text), SETTINGS, seed) for seed in (0, 1)]


def metrics(workers: Workers) -> list[dict[str, object]]:
    try:
        futures = [workers.start(trial) for trial in TRIALS]
        return [without_times(dict(future.result(timeout=120).metrics)) for future in futures]
    finally:
        workers.close()


def failed(error: Exception) -> "Future[TrialResult]":
    future: Future[TrialResult] = Future()
    future.set_exception(error)
    return future


def without_times(metrics: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in metrics.items() if "seconds" not in name}


def test_process_workers_give_the_same_metrics_and_errors() -> None:
    workers = ProcessWorkers(1)
    wrong = workers.start(LabTrial(function_path(train_text), {**SETTINGS, "preset": "gpt9"}, 0))
    assert metrics(workers) == [without_times(dict(run_trial(trial).metrics)) for trial in TRIALS]
    with pytest.raises(ValueError, match="gpt9"):
        wrong.result(timeout=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray, about what it finds on the machine
def test_ray_workers_give_the_same_metrics_and_shut_down_only_their_own_ray() -> None:
    import ray

    first = RayWorkers(1)
    try:
        assert metrics(RayWorkers(1)) == [without_times(dict(run_trial(trial).metrics)) for trial in TRIALS]
        assert ray.is_initialized()
        error = first.start(LabTrial(function_path(train_text), {**SETTINGS, "preset": "gpt9"}, 0)).exception(
            timeout=120
        )
        assert type(error) is ConfigError
        assert "gpt9" in str(error)
        lost: Future[TrialResult] = Future()
        first._end(None, failed(ray.exceptions.WorkerCrashedError()), lost)
        assert isinstance(lost.exception(timeout=1), BrokenExecutor)
        second = RayWorkers(1)
        under_way = second.start(LabTrial(function_path(train_text), {**SETTINGS, "steps": 10**6}, 0))
        second.close()
        assert under_way.exception(timeout=120) is not None
    finally:
        first.close()
    assert not ray.is_initialized()


def test_ray_startup_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def fail(**_: object) -> None:
        raise ConnectionError("no cluster\nmore")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        ConfigError, match=r"failed to start at RAY_ADDRESS='127.0.0.1:1': no cluster\nfix: .*omit --ray"
    ):
        RayWorkers(1)


def test_the_number_of_workers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "cores", lambda: 2)
    for workers in (WorkerConfig, ProcessWorkers, RayWorkers):
        for count in (MAX_WORKERS + 1, 100_000, 10**15):
            with pytest.raises(ConfigError, match=r"must be at most 256\nfix: omit it for one worker per core \(2\)"):
                workers(count)
        for count in (0, -1):
            with pytest.raises(ConfigError, match="workers"):
                workers(count)
    assert WorkerConfig(MAX_WORKERS).count == MAX_WORKERS
    monkeypatch.setattr(workers_module, "cores", lambda: 128)
    assert WorkerConfig(MAX_PER_CORE * 128).count == 512
    with pytest.raises(ConfigError, match="at most 512"):
        WorkerConfig(513)


def test_killed_process_is_replaced() -> None:
    workers = ProcessWorkers(1)
    try:
        future = workers.start(LabTrial(function_path(train_text), {**SETTINGS, "steps": 10**6}, 0))
        deadline = time.monotonic() + 100
        while not workers._started.value:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (process,) = workers._pool._processes.values()
        process.kill()
        with pytest.raises(BrokenExecutor):
            future.result(timeout=100)
        assert workers.start(TRIALS[0]).result(timeout=120).metrics["steps"] == SETTINGS["steps"]
    finally:
        workers.close()


SCRIPT = """
from normscope.lab.budget import get_budget
from normscope.lab.catalog import choose_claims
from normscope.lab.running.run_claims import run_claims
from normscope.lab.running.workers import WorkerConfig
from tests.lab.workers import Silent

run_claims(choose_claims(["variance-by-depth"]), get_budget("quick", 2), "out", Silent(), WorkerConfig(1))
"""


def test_script_without_main_guard_gets_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    places = [str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    run = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 1
    assert run.stderr.count("Traceback") == 1
    assert "ConfigError: the lab's worker processes exit at startup" in run.stderr
    assert 'fix: put the call below `if __name__ == "__main__":' in run.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc")
def test_workers_exit_when_the_lab_is_killed(tmp_path: Path) -> None:
    run, deadline = start_lab(tmp_path, trials=1)
    run.send_signal(signal.SIGTERM)  # to the lab alone, not to its processes
    run.wait(timeout=100)
    while living(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with locked(tmp_path):
        pass  # the next lab may begin


def start_lab(folder: Path, trials: int) -> tuple["subprocess.Popen[bytes]", float]:
    """A running lab with two processes, and the deadline for all to end."""
    command = [sys.executable, "-m", "normscope", "lab", "run", "tails-saturate", "--out", str(folder)]
    run = subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 200
    while len(list(folder.glob("trials/*.json"))) < trials:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return run, deadline


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc")
def test_ctrl_c_ends_all_workers_and_keeps_finished_trials(tmp_path: Path) -> None:
    run, deadline = start_lab(tmp_path, trials=2)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does it: to all of them
    assert run.wait(timeout=100) == 130
    while living(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(list(tmp_path.glob("trials/*.json"))) >= 2
    assert not list(tmp_path.glob("claims/*.json"))


def living(group: int) -> list[str]:
    """Running processes of a group, without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(path.parent.name)
    return found
