"""Estimate of the remaining time: the remaining work at the speed of the finished work."""

import time
from collections.abc import Callable, Iterable, Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.tuning import tuning_runs

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


def claim_work(claim: Claim, budget: Budget) -> float:
    """Estimate the work of all trials of a claim."""
    variants, tuning = claim.experiment.variants(budget), claim.experiment.tuning
    tried = [] if tuning is None else [settings for settings, _ in tuning_runs(variants, tuning(budget))]
    return sum(map(work_of, tried)) + budget.seeds * sum(map(work_of, variants.values()))


class TimeLeft:
    """Counts trials and estimates the remaining time.

    Args:
        trials: number of trials by study.
        work: total work by study; a study without it is assumed to continue as it began.
        clock: monotonic seconds.

    >>> seconds = iter([12.0, 12.0])
    >>> remaining = TimeLeft({"one": 2, "two": 2}, {"one": 20.0, "two": 200.0}, lambda: next(seconds))
    >>> remaining.done("one", 10.0, 6.0, cached=False)
    >>> remaining.seconds()  # 10 units took 6 s; 210 remain
    126.0
    """

    def __init__(
        self,
        trials: Mapping[str, int],
        work: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = dict(trials)
        self._planned = dict(work or {})
        self._done = {study: _Sum() for study in trials}
        self.total, self.finished = sum(trials.values()), 0
        self._worked = 0.0
        self._clock = clock
        self._start: float | None = None

    def done(self, study: str, work: float, seconds: float, cached: bool) -> None:
        """Count a finished trial; a cached one informs the speed, but took no time now."""
        self.finished += 1
        self._left[study] -= 1
        self._done[study].add(work, seconds)
        if not cached:
            self._worked += seconds
            if self._start is None:  # exclude the startup of processes
                self._start = self._clock() - seconds

    def ended(self, study: str) -> None:
        """End a study; after a failure, its remaining trials are dropped."""
        self.total -= self._left[study]
        self._left[study] = 0

    def seconds(self) -> float | None:
        """Return the remaining seconds, or None if unknown."""
        every = _Sum.of(self._done.values())
        if self._start is None or not self._worked or not every.work:
            return None
        seconds = sum(self._seconds(study, every) for study, left in self._left.items() if left)
        return seconds * (self._clock() - self._start) / self._worked

    def _seconds(self, study: str, every: "_Sum") -> float:
        """CPU seconds left in a study, at its own speed or, before its first trial, at that of all studies."""
        done = self._done[study]
        like = done if done.work else every
        left = self._left[study] * like.work / like.trials
        if study in self._planned:
            left = max(0.0, self._planned[study] - done.work)
        return left * like.seconds / like.work


class _Sum:
    """Totals of finished trials."""

    def __init__(self, trials: int = 0, work: float = 0.0, seconds: float = 0.0) -> None:
        self.trials, self.work, self.seconds = trials, work, seconds

    @classmethod
    def of(cls, parts: Iterable["_Sum"]) -> "_Sum":
        together = list(parts)
        return cls(
            sum(part.trials for part in together),
            sum(part.work for part in together),
            sum(part.seconds for part in together),
        )

    def add(self, work: float, seconds: float) -> None:
        self.trials += 1
        self.work += work
        self.seconds += seconds
