"""Progress of lab runs: a bar with the remaining time on a terminal, occasional lines elsewhere."""

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from normscope.lab.running.scheduler import StudyObserver
from normscope.lab.running.time_estimates import TimeLeft, work_of
from normscope.lab.running.trial import LabTrial, TrialResult
from normscope.render.console import SafeConsole
from normscope.render.formatting import format_duration


class LogProgress:
    """Print a line for every tenth of the trials, and for every finished study if there are several; or nothing."""

    def __init__(self, remaining: TimeLeft, several: bool, quiet: bool = False) -> None:
        self.remaining, self.several, self.quiet = remaining, several, quiet
        self._tenths = 0
        self._begun = False

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        if not cached and not self._begun and self.remaining.finished:
            self.print_line(f"{format_trial_count(self.remaining)} already done")
        self._begun = self._begun or not cached
        self.remaining.done(study, work_of(trial.settings), done.seconds, cached)
        tenths = 10 * self.remaining.finished // self.remaining.total
        if tenths > self._tenths and not cached:
            self.show_progress(study)
        self._tenths = tenths

    def show_progress(self, study: str) -> None:
        self.print_line(f"{format_trial_count(self.remaining)}{self.left(', ')}")

    def left(self, before: str = "") -> str:
        seconds = self.remaining.seconds()
        return "" if not seconds else f"{before}{format_duration(seconds)} left"

    def study_done(self, study: str, error: Exception | None) -> None:
        self.remaining.ended(study)
        if self.several and error is None:  # errors are printed at the end
            self.print_line(f"{study}: done")

    def print_line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


class BarProgress(LogProgress):
    """Show a progress bar over all trials."""

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

    def print_line(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


def format_trial_count(remaining: TimeLeft) -> str:
    return f"{remaining.finished} of {remaining.total} trials"


@contextmanager
def lab_progress(
    trials: Mapping[str, int], work: Mapping[str, float] | None = None, quiet: bool = False
) -> Iterator[StudyObserver]:
    """Show the progress of a lab run.

    Args:
        trials: number of trials of each study.
        work: estimated work of each study, if known.
        quiet: show nothing, except after an interruption.
    """
    remaining = TimeLeft(trials, work)
    try:
        with _sigterm_as_interrupt(), _shown(remaining, len(trials) > 1, quiet) as watch:
            yield watch
    except KeyboardInterrupt:
        after = "\n" if sys.stderr.isatty() else ""  # after ^C
        print(
            f"{after}interrupted; {format_trial_count(remaining)} done; run the same command to continue",
            file=sys.stderr,
        )
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
