"""How a lab's run goes: a bar with the time left on a terminal, a line for every finished study elsewhere."""

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
    """A line for every study that is done."""

    def __init__(self, remaining: Remaining) -> None:
        self.remaining = remaining

    def trial_done(self, study: str, trial: Trial, done: Done, cached: bool) -> None:
        self.remaining.done(study, done.seconds, cached)

    def study_done(self, study: str, error: Exception | None) -> None:
        self.say(f"{study}: {'done' if error is None else f'failed: {error}'}")

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar over all trials."""

    def __init__(self, remaining: Remaining, progress: Progress) -> None:
        super().__init__(remaining)
        self._progress = progress
        self._task = progress.add_task("", total=remaining.total, left="")

    def trial_done(self, study: str, trial: Trial, done: Done, cached: bool) -> None:
        super().trial_done(study, trial, done, cached)
        left = self.remaining.seconds()
        words = "" if left is None else f"{duration(left)} left"
        self._progress.update(self._task, completed=self.remaining.finished, description=study, left=words)

    def say(self, words: str) -> None:
        self._progress.console.print(words, highlight=False)


@contextmanager
def lab_watch(trials: Mapping[str, int]) -> Iterator[Watch]:
    """Who watches over so many trials of each study."""
    remaining = Remaining(trials)
    if not sys.stderr.isatty():
        yield Lines(remaining)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(remaining, progress)
