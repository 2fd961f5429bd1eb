"""How a lab's run goes: a bar with the time left on a terminal, a line now and then elsewhere."""

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from normscope.lab.scheduler import StudyObserver
from normscope.lab.time_left import TimeLeft, work_of
from normscope.lab.trial import LabTrial, TrialResult
from normscope.render.console import SafeConsole
from normscope.render.formatting import format_duration


class LogProgress:
    """A line for every tenth of the work, and one for every study that is done, if there are several."""

    def __init__(self, remaining: TimeLeft, several: bool) -> None:
        self.remaining, self.several = remaining, several
        self._tenths = 0
        self._begun = False

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        if not cached and not self._begun and self.remaining.finished:
            self.say(f"{self._counted()} are there already")
        self._begun = self._begun or not cached
        self.remaining.done(study, work_of(trial.settings), done.seconds, cached)
        tenths = 10 * self.remaining.finished // self.remaining.total
        if tenths > self._tenths and not cached:
            self.show_progress(study)
        self._tenths = tenths

    def show_progress(self, study: str) -> None:
        print(f"{self._counted()}{self.left(', ')}", file=sys.stderr, flush=True)

    def _counted(self) -> str:
        return format_trial_count(self.remaining)

    def left(self, before: str = "") -> str:
        seconds = self.remaining.seconds()
        return "" if not seconds else f"{before}{format_duration(seconds)} left"

    def study_done(self, study: str, error: Exception | None) -> None:
        self.remaining.ended(study)
        if self.several and error is None:  # errors are told in the end, where they are seen
            self.say(f"{study}: done")

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)


class BarProgress(LogProgress):
    """A bar over all trials."""

    def __init__(self, remaining: TimeLeft, several: bool, progress: Progress) -> None:
        super().__init__(remaining, several)
        self._progress = progress
        self._task = progress.add_task("", total=remaining.total, left="")

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        super().trial_done(study, trial, done, cached)
        self.show_progress(study)

    def show_progress(self, study: str) -> None:
        self._progress.update(
            self._task,
            completed=self.remaining.finished,
            total=self.remaining.total,
            description=study,
            left=self.left(),
        )

    def say(self, words: str) -> None:
        self._progress.console.print(words, highlight=False)


def format_trial_count(remaining: TimeLeft) -> str:
    return f"{remaining.finished} of {remaining.total} trials"


@contextmanager
def lab_progress(trials: Mapping[str, int], work: Mapping[str, float] | None = None) -> Iterator[StudyObserver]:
    """Who watches over so many trials of each study, which are so much work together if that is known."""
    remaining = TimeLeft(trials, work)
    try:
        with _ended_as_if_interrupted(), _shown(remaining, len(trials) > 1) as watch:
            yield watch
    except KeyboardInterrupt:
        after = "\n" if sys.stderr.isatty() else ""  # the ^C
        print(
            f"{after}interrupted; {format_trial_count(remaining)} are kept, the same command goes on", file=sys.stderr
        )
        raise


@contextmanager
def _ended_as_if_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: the processes below are ended and leave nothing behind."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be taken
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown(remaining: TimeLeft, several: bool) -> Iterator[StudyObserver]:
    if not sys.stderr.isatty():
        yield LogProgress(remaining, several)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as progress:
        yield BarProgress(remaining, several, progress)
