"""Progress of lab runs: a bar with the remaining time on a terminal, occasional lines elsewhere."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from normscope.lab.claim import Settings
from normscope.lab.running.scheduler import StudyObserver
from normscope.lab.running.trial import LabTrial, TrialResult
from normscope.render.console import SafeConsole
from normscope.render.formatting import format_duration

OVERHEAD_BLOCKS = 2
"""Embedding, loss and optimizer of a step take about as long as two blocks, at the size of the lab's models."""
WITHOUT_STEPS = 50.0
"""Work of a trial without training; most take a tenth of a second."""
FLOPS = 4e7
"""FLOPs of about one block of a step."""


def work_of(settings: Settings) -> float:
    """Estimate the work of a trial from its settings, in blocks times steps.

    The unit is arbitrary, because the speed is measured; the ratio between claims, up to a hundred, matters.

    >>> work_of({"steps": 100, "model": {"depth": 4}}), work_of({"steps": 100, "lrs": [0.1, 1.0]}), work_of({})
    (600.0, 400.0, 50.0)
    """
    if "flops" in settings:
        return float(settings["flops"]) / FLOPS
    if "steps" not in settings:
        return WITHOUT_STEPS
    depth = settings.get("model", settings).get("depth", 0)
    return float(settings["steps"] * (OVERHEAD_BLOCKS + depth) * len(settings.get("lrs", [None])))


class TimeLeft:
    """Counts trials and estimates the remaining time.

    Args:
        work: estimated work of every trial, by study.
        clock: monotonic seconds.

    >>> seconds = iter([12.0, 12.0])
    >>> remaining = TimeLeft({"one": [10.0, 10.0], "two": [100.0, 100.0]}, lambda: next(seconds))
    >>> remaining.done("one", 10.0, 6.0, cached=False)
    >>> remaining.seconds()  # 10 units took 6 s; 210 remain
    126.0
    """

    def __init__(self, work: Mapping[str, Sequence[float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._trials = {study: len(trials) for study, trials in work.items()}
        self._work = {study: sum(trials) for study, trials in work.items()}
        self._done = dict.fromkeys(work, (0.0, 0.0))  # work and CPU seconds of finished trials
        self.total, self.finished = sum(self._trials.values()), 0
        self._worked, self._clock = 0.0, clock
        self._start: float | None = None

    def done(self, study: str, work: float, seconds: float, cached: bool) -> None:
        """Count a finished trial; a cached one informs the speed, but took no time now."""
        self.finished += 1
        self._trials[study] -= 1
        done, took = self._done[study]
        self._done[study] = done + work, took + seconds
        if not cached:
            self._worked += seconds
            if self._start is None:  # exclude the startup of processes
                self._start = self._clock() - seconds

    def ended(self, study: str) -> None:
        """End a study; after a failure, its remaining trials are dropped."""
        self.total -= self._trials[study]
        self._trials[study] = 0

    def seconds(self) -> float | None:
        """Return the remaining seconds, or None if unknown."""
        every = tuple(map(sum, zip(*self._done.values(), strict=True)))
        if self._start is None or not self._worked or not every[0]:
            return None
        seconds = 0.0
        for study, (done, _) in self._done.items():
            if self._trials[study]:
                # At its own speed or, before its first trial, at that of all studies.
                work, took = self._done[study] if done else every
                seconds += max(0.0, self._work[study] - done) * took / work
        return seconds * (self._clock() - self._start) / self._worked

    def __str__(self) -> str:
        return f"{self.finished} of {self.total} trials"


class LogProgress:
    """Print a line for every tenth of the trials, and for every finished study if there are several; or nothing."""

    def __init__(self, remaining: TimeLeft, several: bool, quiet: bool = False) -> None:
        self.remaining, self.several, self.quiet = remaining, several, quiet
        self._tenths = 0
        self._begun = False

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        if not cached and not self._begun and self.remaining.finished:
            self.print_line(f"{self.remaining} already done")
        self._begun = self._begun or not cached
        self.remaining.done(study, work_of(trial.settings), done.seconds, cached)
        tenths = 10 * self.remaining.finished // self.remaining.total
        self.show_progress(study, tenths > self._tenths and not cached)
        self._tenths = tenths

    def show_progress(self, study: str, next_tenth: bool) -> None:
        if next_tenth:
            self.print_line(", ".join(filter(None, [str(self.remaining), self.left()])))

    def left(self) -> str:
        seconds = self.remaining.seconds()
        return f"{format_duration(seconds)} left" if seconds else ""

    def study_done(self, study: str, error: Exception | None) -> None:
        self.remaining.ended(study)
        if self.several and error is None:  # errors are printed at the end
            self.print_line(f"{study}: done")

    def machine_lost(self, machine: str) -> None:
        self.print_line(f"note: lost a machine of the cluster: {machine}; its trials run again on the others")

    def print_line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


class BarProgress(LogProgress):
    """Show a progress bar over all trials."""

    def __init__(self, remaining: TimeLeft, several: bool, progress: Progress) -> None:
        super().__init__(remaining, several)
        self._progress = progress
        self._task = progress.add_task("", total=remaining.total, left="")

    def show_progress(self, study: str, next_tenth: bool) -> None:
        done, total = self.remaining.finished, self.remaining.total
        self._progress.update(self._task, completed=done, total=total, description=study, left=self.left())

    def print_line(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


@contextmanager
def lab_progress(work: Mapping[str, Sequence[float]], quiet: bool = False) -> Iterator[StudyObserver]:
    """Show the progress of a lab run.

    Args:
        work: estimated work of every trial, by study.
        quiet: show nothing, except after an interruption.
    """
    remaining = TimeLeft(work)
    try:
        with _sigterm_as_interrupt(), _shown(remaining, len(work) > 1, quiet) as watch:
            yield watch
    except KeyboardInterrupt:
        after = "\n" if sys.stderr.isatty() else ""  # after ^C
        print(f"{after}interrupted; {remaining} done; run the same command to continue", file=sys.stderr)
        raise


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that worker processes are ended and cleaned up."""
    if threading.current_thread() is not threading.main_thread():  # signal handlers need the main thread
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown(remaining: TimeLeft, several: bool, quiet: bool) -> Iterator[StudyObserver]:
    if quiet or not sys.stderr.isatty():
        yield LogProgress(remaining, several, quiet)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as progress:
        yield BarProgress(remaining, several, progress)
