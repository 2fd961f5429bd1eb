"""How long it will take: the work that is left, at the pace of the work that is done."""

import time
from collections.abc import Callable, Iterable, Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.tuning import tuning_runs

BESIDES_BLOCKS = 2
"""A step's embedding, loss and optimiser take about as long as two blocks, at the size of the lab's models."""
WITHOUT_STEPS = 50.0
"""The work of a trial that trains nothing; most take a tenth of a second."""
FLOPS = 4e7
"""About as many as one block of a step."""


def work_of(settings: Settings) -> float:
    """How much work a trial of these settings will be, roughly, in blocks: one of a model's blocks for one step.

    Only what is said in the settings of all kinds of trials is looked at. The unit does not matter, as what a block
    takes is seen while it runs; that claims differ by a hundred times does.

    >>> work_of({"steps": 100, "model": {"depth": 4}}), work_of({"steps": 100, "lrs": [0.1, 1.0]}), work_of({})
    (600.0, 400.0, 50.0)
    """
    if "flops" in settings:
        return float(settings["flops"]) / FLOPS
    if "steps" not in settings:
        return WITHOUT_STEPS
    depth = settings.get("model", settings).get("depth", 0)
    return float(settings["steps"] * (BESIDES_BLOCKS + depth) * len(settings.get("lrs", [None])))


def claim_work(claim: Claim, budget: Budget) -> float:
    """That of all trials of a claim."""
    variants = claim.variants(budget)
    tried = [] if claim.tuning is None else [settings for settings, _ in tuning_runs(variants, claim.tuning(budget))]
    return sum(map(work_of, tried)) + budget.seeds * sum(map(work_of, variants.values()))


class TimeLeft:
    """Counts trials and guesses the rest.

    Args:
        trials: how many each study will ask for.
        work: how much they will be, all of a study's together; of a study that is not named here, what is left is
            taken to be like what it has done.
        clock: seconds, of any beginning.

    >>> seconds = iter([12.0, 12.0])
    >>> remaining = TimeLeft({"one": 2, "two": 2}, {"one": 20.0, "two": 200.0}, lambda: next(seconds))
    >>> remaining.done("one", 10.0, 6.0, cached=False)
    >>> remaining.seconds()  # 10 of the work took 6 s; 210 are left
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
        """A trial is finished; what was kept from before tells how long its like take, but took no time now."""
        self.finished += 1
        self._left[study] -= 1
        self._done[study].add(work, seconds)
        if not cached:
            self._worked += seconds
            if self._start is None:  # so that what processes take to start is not taken for the pace of trials
                self._start = self._clock() - seconds

    def ended(self, study: str) -> None:
        """A study is over; what it did not get to, because it failed, will not come."""
        self.total -= self._left[study]
        self._left[study] = 0

    def seconds(self) -> float | None:
        """The time left, or None if nothing is known yet."""
        every = _Sum.of(self._done.values())
        if self._start is None or not self._worked or not every.work:
            return None
        seconds = sum(self._seconds(study, every) for study, left in self._left.items() if left)
        return seconds * (self._clock() - self._start) / self._worked

    def _seconds(self, study: str, every: "_Sum") -> float:
        """What a study still takes, of one core: at its own pace, or, if nothing of it is done, at that of all."""
        done = self._done[study]
        like = done if done.work else every
        left = self._left[study] * like.work / like.trials
        if study in self._planned:
            left = max(0.0, self._planned[study] - done.work)
        return left * like.seconds / like.work


class _Sum:
    """Of trials that are done."""

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
