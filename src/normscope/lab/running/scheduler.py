"""Runs the trials of several studies in parallel: each study requests trials and waits for their results."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from normscope.errors import ConfigError, NormscopeError
from normscope.lab.running.store import Store
from normscope.lab.running.trial import LabTrial, TrialResult
from normscope.lab.running.workers import Workers
from normscope.runs.lock import locked

Result = TypeVar("Result")
Study = Generator[Sequence[LabTrial], list[TrialResult], Result]
"""Yields lists of trials, receives their results, and returns a result."""


class StudyObserver(Protocol):
    """Receives progress."""

    def trial_done(self, study: str, trial: LabTrial, result: TrialResult, cached: bool) -> None: ...

    def study_done(self, study: str, error: Exception | None) -> None: ...


@dataclass
class _ActiveStudy(Generic[Result]):
    """A study in progress: its last request, the results so far, and the trials whose worker died once."""

    study: Study[Result]
    requested: list[LabTrial] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    results: dict[int, TrialResult] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def next_is_alone(self) -> bool:
        """Whether the next trial must run alone; one whose worker died does too, to identify the cause."""
        index = self.waiting[0]
        return self.requested[index].alone or index in self.lost


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
        self.errors: dict[str, Exception] = {}

    def run(self, studies: Mapping[str, Study[Result]]) -> dict[str, Result]:
        """Return results by name. A study that fails is listed in `errors` and does not stop the others.

        The store's folder is locked meanwhile: two labs at once would distort each other's times.
        """
        with locked(self._store.folder):
            return self._run(studies)

    def _run(self, studies: Mapping[str, Study[Result]]) -> dict[str, Result]:
        self._studies = {name: _ActiveStudy(study) for name, study in studies.items()}
        for name in list(self._studies):
            self._advance(name, None)
        while self._studies:
            self._start_trials()
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                self._collect(future)
        return {name: self._results[name] for name in studies if name in self._results}

    def _advance(self, name: str, results: list[TrialResult] | None) -> None:
        """Send a study its results, and queue the trials that it requests next."""
        active = self._studies[name]
        try:
            active.requested = list(next(active.study) if results is None else active.study.send(results))
        except StopIteration as end:
            self._results[name] = end.value
            self._finish(name, None)
            return
        except Exception as error:  # an error in one study must not end the others
            self._finish(name, error)
            return
        active.results, active.lost = {}, set()
        for index, trial in enumerate(active.requested):
            cached = self._store.load(trial)
            if cached is None:
                active.waiting.append(index)
            else:
                active.results[index] = cached
                self._observer.trial_done(name, trial, cached, True)
        self._advance_if_complete(name)

    def _advance_if_complete(self, name: str) -> None:
        active = self._studies[name]
        if len(active.results) == len(active.requested):
            self._advance(name, [active.results[index] for index in range(len(active.requested))])

    def _start_trials(self) -> None:
        """Keep all workers busy; a trial that must run alone starts when nothing runs, and ends before others start."""
        if any(run.alone for run in self._running.values()):
            return
        for alone in (False, True):
            for name, active in self._studies.items():
                while active.waiting and active.next_is_alone() is alone:
                    if len(self._running) >= (1 if alone else self._workers.count):
                        return
                    index = active.waiting.popleft()
                    run = _ActiveTrial(name, index, active.requested[index], alone)
                    self._running[self._workers.start(run.trial)] = run

    def _collect(self, future: "Future[TrialResult]") -> None:
        run = self._running.pop(future)
        error = future.exception()
        if error is None:
            error = self._save(run.trial, future.result())
        if run.study not in self._studies:  # another of its trials failed
            return
        active = self._studies[run.study]
        if error is None:
            active.results[run.index] = future.result()
            self._observer.trial_done(run.study, run.trial, future.result(), False)
            self._advance_if_complete(run.study)
        elif isinstance(error, BrokenExecutor) and run.index not in active.lost:
            active.lost.add(run.index)
            active.waiting.append(run.index)
        elif isinstance(error, BrokenExecutor):
            self._finish(run.study, _killed_twice(run.trial))
        elif isinstance(error, Exception):
            self._finish(run.study, _with_trial(error, run.trial))
        else:
            raise error

    def _save(self, trial: LabTrial, result: TrialResult) -> ConfigError | None:
        """Store a result, or return why it was refused. A full disk ends the whole run."""
        try:
            self._store.save(trial, result)
        except ConfigError as error:
            return error
        return None

    def _finish(self, name: str, error: Exception | None) -> None:
        self._studies.pop(name).study.close()
        if error is not None:
            self.errors[name] = error
        self._observer.study_done(name, error)


def _killed_twice(trial: LabTrial) -> NormscopeError:
    return NormscopeError(
        "the worker of a trial was killed twice, the second time with nothing else running; most likely it ran out of "
        f"memory: {trial}\nfix: free memory, or choose smaller models; the same command resumes from here"
    )


def _with_trial(error: Exception, trial: LabTrial) -> Exception:
    """Add the trial to an error message."""
    if error.args == (str(error),):
        error.args = (f"{error}\nthe trial: {trial}",)
    else:  # the message is built from several arguments
        error.add_note(f"the trial: {trial}")
    return error
