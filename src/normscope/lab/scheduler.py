"""Studies and hands: every study asks for trials and waits for them; whoever is free takes the first that waits."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from normscope.errors import ConfigError, NormscopeError
from normscope.lab.store import Store
from normscope.lab.trial import LabTrial, TrialResult
from normscope.lab.workers import Workers
from normscope.runs.lock import locked

Result = TypeVar("Result")
Study = Generator[Sequence[LabTrial], list[TrialResult], Result]
"""Asks for trials, is given what they gave, may ask for more, and returns a result."""


class StudyObserver(Protocol):
    """Who is told how it goes."""

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None: ...

    def study_done(self, study: str, error: Exception | None) -> None: ...


@dataclass
class _Course(Generic[Result]):
    """A study under way: what it asked for last, what came back so far, and which trials lost their process once."""

    study: Study[Result]
    asked: list[LabTrial] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    given: dict[int, TrialResult] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def next_is_alone(self) -> bool:
        """Whether the next trial has to run by itself; one that lost its process does too, so that blame is clear."""
        place = self.waiting[0]
        return self.asked[place].alone or place in self.lost


@dataclass(frozen=True)
class _Run:
    """A trial under way: whose it is, and which."""

    study: str
    place: int
    trial: LabTrial
    alone: bool


class TrialScheduler(Generic[Result]):
    """Runs studies side by side, the first ones first.

    Args:
        store: where finished trials are kept and found.
        workers: who runs the others.
        watch: who is told.
    """

    def __init__(self, store: Store, workers: Workers, watch: StudyObserver) -> None:
        self._store, self._workers, self._watch = store, workers, watch
        self._courses: dict[str, _Course[Result]] = {}
        self._running: dict[Future[TrialResult], _Run] = {}
        self._results: dict[str, Result] = {}
        self.errors: dict[str, Exception] = {}

    def run(self, studies: Mapping[str, Study[Result]]) -> dict[str, Result]:
        """The results by name. A study that fails is left out, told in `errors`, and does not stop the others.

        Nobody else may work in the store's folder meanwhile: two at once would spoil each other's times.
        """
        with locked(self._store.folder):
            return self._run(studies)

    def _run(self, studies: Mapping[str, Study[Result]]) -> dict[str, Result]:
        self._courses = {name: _Course(study) for name, study in studies.items()}
        for name in list(self._courses):
            self._go_on(name, None)
        while self._courses:
            self._start_what_can_be()
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                self._take(future)
        return {name: self._results[name] for name in studies if name in self._results}

    def _go_on(self, name: str, given: list[TrialResult] | None) -> None:
        """Give a study what it asked for, and hear what it asks for next."""
        course = self._courses[name]
        try:
            course.asked = list(next(course.study) if given is None else course.study.send(given))
        except StopIteration as end:
            self._results[name] = end.value
            self._finish(name, None)
            return
        except Exception as error:  # whatever is wrong with one study must not end the others
            self._finish(name, error)
            return
        course.given, course.lost = {}, set()
        for place, trial in enumerate(course.asked):
            found = self._store.find(trial)
            if found is None:
                course.waiting.append(place)
            else:
                course.given[place] = found
                self._watch.trial_done(name, trial, found, True)
        self._go_on_if_complete(name)

    def _go_on_if_complete(self, name: str) -> None:
        course = self._courses[name]
        if len(course.given) == len(course.asked):
            self._go_on(name, [course.given[place] for place in range(len(course.asked))])

    def _start_what_can_be(self) -> None:
        """Keep all hands busy; but a trial that has to be alone begins when nobody works, and ends before others."""
        if any(run.alone for run in self._running.values()):
            return
        for alone in (False, True):
            for name, course in self._courses.items():
                while course.waiting and course.next_is_alone() is alone:
                    if len(self._running) >= (1 if alone else self._workers.count):
                        return
                    place = course.waiting.popleft()
                    run = _Run(name, place, course.asked[place], alone)
                    self._running[self._workers.start(run.trial)] = run

    def _take(self, future: "Future[TrialResult]") -> None:
        run = self._running.pop(future)
        error = future.exception()
        if error is None:
            error = self._keep(run.trial, future.result())
        if run.study not in self._courses:  # another of its trials failed
            return
        course = self._courses[run.study]
        if error is None:
            course.given[run.place] = future.result()
            self._watch.trial_done(run.study, run.trial, future.result(), False)
            self._go_on_if_complete(run.study)
        elif isinstance(error, BrokenExecutor) and run.place not in course.lost:
            course.lost.add(run.place)
            course.waiting.append(run.place)
        elif isinstance(error, BrokenExecutor):
            self._finish(run.study, _lost_twice(run.trial))
        elif isinstance(error, Exception):
            self._finish(run.study, _with_its_trial(error, run.trial))
        else:
            raise error

    def _keep(self, trial: LabTrial, done: TrialResult) -> ConfigError | None:
        """Keep what a trial gave; if that is refused, why. A disk that is full ends it all."""
        try:
            self._store.keep(trial, done)
        except ConfigError as error:
            return error
        return None

    def _finish(self, name: str, error: Exception | None) -> None:
        self._courses.pop(name).study.close()
        if error is not None:
            self.errors[name] = error
        self._watch.study_done(name, error)


def _lost_twice(trial: LabTrial) -> NormscopeError:
    return NormscopeError(
        "the process of a trial was killed, and once more when it was run with nothing beside it; most likely it needs "
        f"more memory than there is: {trial.in_words}\nfix: make room, or choose smaller models; the same command "
        "goes on from here"
    )


def _with_its_trial(error: Exception, trial: LabTrial) -> Exception:
    """The same error, which now says in which trial it was raised."""
    if error.args == (str(error),):
        error.args = (f"{error}\nthe trial: {trial.in_words}",)
    else:  # its words are made of several things
        error.add_note(f"the trial: {trial.in_words}")
    return error
