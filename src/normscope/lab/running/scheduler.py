"""Runs the trials of several studies in parallel: each study requests trials and waits for their results."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from normscope.errors import ConfigError, NormscopeError
from normscope.lab.running.trial import LabTrial, Store, TrialResult
from normscope.lab.running.workers import MachineLostError, Workers, start_workers
from normscope.storage.lock import locked

Result = TypeVar("Result")
Study = Generator[Sequence[LabTrial], list[TrialResult], Result]
"""Yields lists of trials, receives their results, and returns a result."""


class StudyObserver(Protocol):
    """Receives progress."""

    def trial_done(self, study: str, trial: LabTrial, result: TrialResult, cached: bool) -> None: ...

    def study_done(self, study: str, error: Exception | None) -> None: ...

    def machine_lost(self, machine: str) -> None:
        """Called once per machine of a cluster whose trials run again on others."""


@dataclass
class _ActiveStudy(Generic[Result]):
    """A study in progress: its last request, the results so far, and the trials whose machine or worker died once."""

    study: Study[Result]
    requested: Sequence[LabTrial] | None = None
    waiting: deque[int] = field(default_factory=deque)
    results: dict[int, TrialResult] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _ActiveTrial:
    study: str
    index: int
    trial: LabTrial
    alone: bool


class TrialScheduler(Generic[Result]):
    """Runs studies in parallel, in order of priority.

    Args:
        store: cache of finished trials.
        workers: run the others.
        observer: receives progress.
    """

    def __init__(self, store: Store, workers: Workers, observer: StudyObserver) -> None:
        self._store, self._workers, self._observer = store, workers, observer
        self._studies: dict[str, _ActiveStudy[Result]] = {}
        self._running: dict[Future[TrialResult], _ActiveTrial] = {}
        self._results: dict[str, Result] = {}
        self._lost_machines = set[str]()
        self.errors: dict[str, Exception] = {}

    def run(self, studies: Mapping[str, Study[Result]]) -> dict[str, Result]:
        """Return results by name. A study that fails is listed in `errors` and does not stop the others.

        The store's folder is locked during the run: concurrent labs would distort each other's timings.
        """
        with locked(self._store.folder):
            self._studies = {name: _ActiveStudy(study) for name, study in studies.items()}
            for name in studies:
                self._advance(name)
            while self._studies:
                self._start_trials()
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    self._collect(future)
        return {name: self._results[name] for name in studies if name in self._results}

    def _advance(self, name: str) -> None:
        """Send a study its results while it has all, and queue the trials that it requests next."""
        active = self._studies[name]
        while active.requested is None or len(active.results) == len(active.requested):
            try:
                if active.requested is None:
                    active.requested = next(active.study)
                else:
                    results = [active.results[index] for index in range(len(active.requested))]
                    active.requested = active.study.send(results)
            except StopIteration as end:
                self._results[name] = end.value
                self._finish(name, None)
                return
            except Exception as error:  # an error in one study must not end the others
                self._finish(name, error)
                return
            active.results, active.moved, active.lost = {}, set(), set()
            for index, trial in enumerate(active.requested):
                cached = self._store.load(trial)
                if cached is None:
                    active.waiting.append(index)
                else:
                    active.results[index] = cached
                    self._observer.trial_done(name, trial, cached, True)

    def _start_trials(self) -> None:
        """Keep all workers busy; a trial that must run alone starts when nothing runs, and ends before others start.

        A trial whose worker died also runs alone, to identify the cause.
        """
        if any(run.alone for run in self._running.values()):
            return
        for alone in (False, True):
            for name, active in self._studies.items():
                while active.waiting:
                    index, requested = active.waiting[0], active.requested or ()
                    if (requested[index].alone or index in active.lost) is not alone:
                        break
                    if len(self._running) >= (1 if alone else self._workers.count):
                        return
                    run = _ActiveTrial(name, active.waiting.popleft(), requested[index], alone)
                    self._running[self._workers.start(run.trial)] = run

    def _collect(self, future: "Future[TrialResult]") -> None:
        run = self._running.pop(future)
        error = future.exception()
        if isinstance(error, MachineLostError) and str(error) not in self._lost_machines:
            self._lost_machines.add(str(error))
            self._observer.machine_lost(str(error))
        if error is None:
            try:
                self._store.save(run.trial, future.result())  # a full disk ends the whole run
            except ConfigError as refused:
                error = refused
        if run.study not in self._studies:  # another of its trials failed
            return
        active = self._studies[run.study]
        if error is None:
            active.results[run.index] = future.result()
            self._observer.trial_done(run.study, run.trial, future.result(), False)
            self._advance(run.study)
        elif isinstance(error, MachineLostError) and run.index not in active.moved | active.lost:
            active.moved.add(run.index)  # most likely it isn't this trial's fault, so it doesn't have to run alone
            active.waiting.append(run.index)
        elif isinstance(error, BrokenExecutor) and run.index not in active.lost:
            active.lost.add(run.index)
            active.waiting.append(run.index)
        elif isinstance(error, Exception):
            self._finish(run.study, _failure(error, run.trial))
        else:
            raise error

    def _finish(self, name: str, error: Exception | None) -> None:
        self._studies.pop(name).study.close()
        if error is not None:
            self.errors[name] = error
        self._observer.study_done(name, error)


def run_studies(
    store: Store, studies: Mapping[str, Study[Result]], observer: StudyObserver, workers: int | None, ray: bool
) -> tuple[dict[str, Result], dict[str, Exception]]:
    """Start workers, run studies, and end the workers; return results and errors by name."""
    pool = start_workers(workers, ray, store.texts)
    try:
        scheduler: TrialScheduler[Result] = TrialScheduler(store, pool, observer)
        return scheduler.run(studies), scheduler.errors
    finally:
        pool.close()


def _failure(error: Exception, trial: LabTrial) -> Exception:
    """Add the trial to an error message."""
    if isinstance(error, BrokenExecutor):
        return NormscopeError(
            "the worker of a trial was killed twice, the second time with nothing else running; most likely it ran "
            f"out of memory: {trial}\nfix: free memory, or choose smaller models; the same command resumes from here"
        )
    if error.args == (str(error),):
        error.args = (f"{error}\nthe trial: {trial}",)
    else:  # the message is built from several arguments
        error.add_note(f"the trial: {trial}")
    return error
