"""Workers for tests: they run trials in this process and record them. And a Ray that does so."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from normscope.lab.claim import Settings
from normscope.lab.running.trial import LabTrial, TrialResult, run_trial


class Here:
    """Runs every trial when it is started.

    Args:
        count: how many are started at once.
        texts: where texts are found.
        stop_after: how many trials are run before the user presses Ctrl-C.
    """

    def __init__(self, count: int = 2, texts: Path | None = None, stop_after: int | None = None) -> None:
        self.count, self.texts, self.stop_after = count, texts, stop_after
        self.started: list[LabTrial] = []

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        if self.stop_after is not None and len(self.started) >= self.stop_after:
            raise KeyboardInterrupt
        self.started.append(trial)
        future: Future[TrialResult] = Future()
        try:
            future.set_result(run_trial(trial, self.texts))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


def wait_a_little(settings: Settings, seed: int) -> dict[str, float]:
    """A trial without torch."""
    time.sleep(settings["seconds"])
    return {"seed": float(seed)}


class Silent:
    """An observer that records events."""

    def __init__(self) -> None:
        self.trials: list[tuple[str, bool]] = []
        self.studies: dict[str, Exception | None] = {}
        self.lost_machines: list[str] = []

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        self.trials.append((study, cached))

    def study_done(self, study: str, error: Exception | None) -> None:
        self.studies[study] = error

    def machine_lost(self, machine: str) -> None:
        self.lost_machines.append(machine)


class RayError(Exception):
    """An error of Ray; that of a trial has the trial's own error as its cause."""

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__("of Ray")
        self.cause = cause


class WorkerCrashedError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class NodeDiedError(RayError):
    pass


class Reference:
    """A trial that was handed to Ray: it has run, unless it asks for very many steps, which are never done."""

    def __init__(self, run: Callable[..., TrialResult], trial: LabTrial, texts: Path | None) -> None:
        self.ended: Future[TrialResult] = Future()
        if trial.settings.get("steps", 0) >= 10**6:
            return
        try:
            self.ended.set_result(run(trial, texts))
        except Exception as error:
            self.ended.set_exception(RayError(error))

    def future(self) -> "Future[TrialResult]":
        return self.ended


class FakeRay(ModuleType):
    """What the lab uses of Ray, without processes."""

    CORES = 3

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(
            WorkerCrashedError=WorkerCrashedError, OutOfMemoryError=OutOfMemoryError, NodeDiedError=NodeDiedError
        )
        self.options: dict[str, Any] = {}
        self._initialized = False

    def init(self, **options: Any) -> None:
        assert not self._initialized
        self.options, self._initialized = options, True

    def is_initialized(self) -> bool:
        return self._initialized

    def shutdown(self) -> None:
        assert self._initialized
        self._initialized = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.CORES)}

    def remote(self, num_cpus: int, max_retries: int) -> Callable[[Callable[..., TrialResult]], Any]:
        assert num_cpus == 1  # a trial has one thread
        assert max_retries == 0  # the scheduler counts them
        return lambda run: SimpleNamespace(remote=lambda trial, texts: Reference(run, trial, texts))

    def cancel(self, reference: Reference, force: bool) -> None:
        assert force  # otherwise it would be finished first
        reference.ended.set_exception(RayError())
