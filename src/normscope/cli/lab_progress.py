"""How a lab's run goes: a bar with the time left on a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from normscope.lab.remaining import Remaining
from normscope.lab.schedule import Watch
from normscope.lab.trial import Done, Trial
from normscope.train.observers.words import duration


class Lines:
    """A line for every tenth of the work, and one for every study that is done, if there are several."""

    def __init__(self, remaining: Remaining, several: bool) -> None:
        self.remaining, self.several = remaining, several
        self._tenths = 0

    def trial_done(self, study: str, trial: Trial, done: Done, cached: bool) -> None:
        self.remaining.done(study, done.seconds, cached)
        tenths = 10 * self.remaining.finished // self.remaining.total
        if tenths > self._tenths and not cached:
            self.show_progress(study)
        self._tenths = tenths

    def show_progress(self, study: str) -> None:
        print(
            f"{self.remaining.finished} of {self.remaining.total} trials{self.left(', ')}", file=sys.stderr, flush=True
        )

    def left(self, before: str = "") -> str:
        seconds = self.remaining.seconds()
        return "" if not seconds else f"{before}{duration(seconds)} left"

    def study_done(self, study: str, error: Exception | None) -> None:
        if self.several and error is None:  # errors are told in the end, where they are seen
            self.say(f"{study}: done")

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar over all trials."""

    def __init__(self, remaining: Remaining, several: bool, progress: Progress) -> None:
        super().__init__(remaining, several)
        self._progress = progress
        self._task = progress.add_task("", total=remaining.total, left="")

    def trial_done(self, study: str, trial: Trial, done: Done, cached: bool) -> None:
        super().trial_done(study, trial, done, cached)
        self.show_progress(study)

    def show_progress(self, study: str) -> None:
        self._progress.update(self._task, completed=self.remaining.finished, description=study, left=self.left())

    def say(self, words: str) -> None:
        self._progress.console.print(words, highlight=False)


@contextmanager
def lab_watch(trials: Mapping[str, int]) -> Iterator[Watch]:
    """Who watches over so many trials of each study."""
    remaining, several = Remaining(trials), len(trials) > 1
    if not sys.stderr.isatty():
        yield Lines(remaining, several)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(remaining, several, progress)
