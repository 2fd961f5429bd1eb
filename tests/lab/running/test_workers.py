"""Workers: the same metrics in processes and on Ray, and a clean end."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.lab.claims.initialization.variance_by_depth import measure
from normscope.lab.running import workers as workers_module
from normscope.lab.running.trial import LabTrial, TrialResult, function_path, run_trial
from normscope.lab.running.workers import (
    MAX_PER_CORE,
    MAX_WORKERS,
    MachineLostError,
    ProcessWorkers,
    RayWorkers,
    Workers,
    check_workers,
    default_workers,
)
from normscope.lab.trials.text import SMALL_GPT, train_text
from normscope.storage.lock import locked
from tests.lab.workers import FakeRay
from tests.pairs import chiefly

SETTINGS = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 8, "batch": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "computed": (function_path(measure), {"gain": 1.0, "layers": 2, "samples": 8}),  # loads little of torch
    "trained": (function_path(train_text), SETTINGS),
}


def check_metrics(workers: Workers, kind: str) -> None:
    """In another process the metrics are the same as in this one."""
    trials = [LabTrial(*KINDS[kind], seed) for seed in (0, 1)]
    futures = [workers.start(trial) for trial in trials]
    found = [without_times(dict(future.result(timeout=120).metrics)) for future in futures]
    assert found == [without_times(dict(run_trial(trial).metrics)) for trial in trials]
    assert found[0] != found[1]


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessWorkers]:
    """One process: to start it takes seconds."""
    workers = ProcessWorkers(1)
    yield workers
    workers.close()


def failed(error: Exception) -> "Future[TrialResult]":
    future: Future[TrialResult] = Future()
    future.set_exception(error)
    return future


def without_times(metrics: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in metrics.items() if "seconds" not in name}


@pytest.mark.parametrize("kind", chiefly(["computed"], ["trained"]))
def test_process_workers_give_the_same_metrics_and_errors(process: ProcessWorkers, kind: str) -> None:
    wrong = process.start(LabTrial(function_path(train_text), {**SETTINGS, "preset": "gpt9"}, 0))
    check_metrics(process, kind)
    with pytest.raises(ValueError, match="gpt9"):
        wrong.result(timeout=1)


@pytest.mark.filterwarnings("ignore")  # of Ray, about what it finds on the machine
@pytest.mark.parametrize("kind", chiefly(["fake"], ["real"]))
def test_ray_workers_give_the_same_metrics_and_shut_down_only_their_own_ray(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "fake":
        monkeypatch.setitem(sys.modules, "ray", FakeRay())
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray: Any = importlib.import_module("ray")
    first = RayWorkers(1)
    try:
        same = RayWorkers(1)
        check_metrics(same, "computed" if kind == "fake" else "trained")
        same.close()
        assert ray.is_initialized()
        assert kind == "fake" or [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
        error = first.start(LabTrial(function_path(train_text), {**SETTINGS, "preset": "gpt9"}, 0)).exception(
            timeout=120
        )
        assert type(error) is ConfigError
        assert "gpt9" in str(error)
        lost: Future[TrialResult] = Future()
        first._end(None, failed(ray.exceptions.WorkerCrashedError()), lost)
        assert type(lost.exception(timeout=1)) is BrokenExecutor
        machine: Future[TrialResult] = Future()
        first._end(None, failed(ray.exceptions.NodeDiedError("Node IP: 10.0.0.2, node ID: 1f2e")), machine)
        assert isinstance(machine.exception(timeout=1), MachineLostError)
        second = RayWorkers(1)
        under_way = second.start(LabTrial(function_path(train_text), {**SETTINGS, "steps": 10**6}, 0))
        second.close()
        assert under_way.exception(timeout=120) is not None
    finally:
        first.close()
    assert not ray.is_initialized()


def test_ray_is_started_for_so_many_workers_or_found_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    RayWorkers(2).close()
    assert (ray.options["num_cpus"], ray.options["include_dashboard"]) == (2, False)
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    workers = RayWorkers()
    assert ray.options["address"] == "10.0.0.1:6379"
    assert not {"num_cpus", "_node_ip_address"} & ray.options.keys()
    assert workers.count == FakeRay.CORES
    monkeypatch.setattr(FakeRay, "CORES", 9)  # machines have joined
    assert workers.count == 9
    workers.close()
    assert not ray.is_initialized()
    assert (default_workers(ray=True), default_workers(ray=False)) == (9, workers_module.cores())
    assert not ray.is_initialized()


def test_ray_startup_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)

    def fail(**_: object) -> None:
        raise ConnectionError("no cluster\nmore")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        ConfigError, match=r"failed to start at RAY_ADDRESS='127.0.0.1:1': no cluster\nfix: .*omit --ray"
    ):
        RayWorkers(1)


def test_the_number_of_workers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(workers_module, "cores", lambda: 2)
    for workers in (check_workers, ProcessWorkers, RayWorkers):
        for count in (MAX_WORKERS + 1, 100_000, 10**15):
            with pytest.raises(ConfigError, match=r"must be at most 256\nfix: omit it for one worker per core \(2\)"):
                workers(count)
        for count in (0, -1):
            with pytest.raises(ConfigError, match="workers"):
                workers(count)
    check_workers(MAX_WORKERS)
    monkeypatch.setattr(workers_module, "cores", lambda: 128)
    check_workers(MAX_PER_CORE * 128)
    with pytest.raises(ConfigError, match="at most 512"):
        check_workers(513)


def test_killed_process_is_replaced(process: ProcessWorkers) -> None:
    future = process.start(LabTrial(function_path(train_text), {**SETTINGS, "steps": 10**6}, 0))
    deadline = time.monotonic() + 100
    while not process._started.value:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (running,) = process._pool._processes.values()
    running.kill()
    with pytest.raises(BrokenExecutor):
        future.result(timeout=100)
    again = process.start(LabTrial(*KINDS["computed"], seed=0))
    assert len(again.result(timeout=120).metrics["forward"]) == 3


# As short as a lab can be: no claims, and a trial needs nothing of torch but this.
TORCH = """
def get_num_threads(): return 1
def set_num_threads(count): pass
def manual_seed(seed): pass
"""
SCRIPT = """
from normscope.lab.running.scheduler import run_studies
from normscope.lab.running.trial import LabTrial, Store
from tests.lab import workers
import sys
sys.modules["normscope.waiting"] = workers  # a trial's function has to be in normscope

def study():
    yield [LabTrial("normscope.waiting:wait_a_little", {"seconds": 1.0 if i > 1 else 0.0}, i) for i in range(99)]

def main(_=()):
    _, errors = run_studies(Store("out"), {"one": study()}, workers.Silent(), 2, False)
    for error in errors.values():
        raise error
"""
GUARDED = f"""{SCRIPT}
if __name__ == "__main__":
    from normscope import cli
    cli.COMMANDS["script"] = ("script", "Runs the lab above, as a command of normscope.")
    sys.argv[1:] = ["script"]
    cli.program()
"""


def start_script(code: str, folder: Path, **options: Any) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(code)
    (folder / "torch.py").write_text(TORCH)
    places = [str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    return subprocess.Popen([sys.executable, "script.py"], cwd=folder, env=environment, text=True, **options)


def test_script_without_main_guard_gets_a_clear_error(tmp_path: Path) -> None:
    run = start_script(f"{SCRIPT}\nmain()\n", tmp_path, stderr=subprocess.PIPE)
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 1
    assert errors.count("Traceback") == 1
    assert "ConfigError: the lab's worker processes exit at startup" in errors
    assert 'fix: put the call below `if __name__ == "__main__":' in errors


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc")
def test_workers_exit_when_the_lab_is_killed(tmp_path: Path) -> None:
    run = start_script(GUARDED, tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = wait_for_trials(run, tmp_path / "out", 1)
    run.send_signal(signal.SIGTERM)  # to the lab alone, not to its processes
    run.wait(timeout=100)
    while living(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with locked(tmp_path / "out"):
        pass  # the next lab may begin


def wait_for_trials(run: "subprocess.Popen[Any]", folder: Path, trials: int) -> float:
    """Wait until a lab has run so many trials; returns the deadline for all of its processes to end."""
    deadline = time.monotonic() + 200
    while len(list(folder.glob("trials/*.json"))) < trials:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return deadline


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc")
@pytest.mark.parametrize("lab", chiefly(["script"], ["claim"]))
def test_ctrl_c_ends_all_workers_and_keeps_finished_trials(tmp_path: Path, lab: str) -> None:
    out = tmp_path / "out"
    if lab == "script":
        run = start_script(GUARDED, tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    else:  # many short trials: the first is soon done, the last is not
        command = [sys.executable, "-m", "normscope", "lab", "run", "variance-by-depth", "--seeds", "900"]
        options = ["--workers", "2", "--out", str(out)]
        run = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = wait_for_trials(run, out, 2)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does it: to all of them
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 130
    assert lab == "claim" or errors == ""
    while living(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(list(out.glob("trials/*.json"))) >= 2
    assert not list(out.glob("claims/*.json"))


def living(group: int) -> list[str]:
    """Running processes of a group, without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(path.parent.name)
    return found
