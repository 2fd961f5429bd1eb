"""How long it will take: what each study's trials took so far, times those that are left."""

import time
from collections.abc import Callable, Mapping


class Remaining:
    """Counts trials and guesses the rest.

    Args:
        trials: how many each study will ask for.
        clock: seconds, of any beginning.

    >>> seconds = iter([0.0, 10.0])
    >>> remaining = Remaining({"one": 2, "two": 2}, lambda: next(seconds))
    >>> remaining.done("one", 5.0, cached=False)
    >>> remaining.seconds()  # 5 s of work took 10 s; three trials, 15 s of work, are left
    30.0
    """

    def __init__(self, trials: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = dict(trials)
        self._spent: dict[str, list[float]] = {}
        self.total, self.finished = sum(trials.values()), 0
        self._worked = 0.0
        self._clock = clock
        self._start = clock()

    def done(self, study: str, seconds: float, cached: bool) -> None:
        """A trial is finished; what was kept from before tells how long its like take, but took no time now."""
        self.finished += 1
        self._left[study] -= 1
        self._spent.setdefault(study, []).append(seconds)
        self._worked += 0.0 if cached else seconds

    def seconds(self) -> float | None:
        """The time left, or None if nothing is known yet."""
        every = [seconds for spent in self._spent.values() for seconds in spent]
        if not self._worked:
            return None
        usual = sum(every) / len(every)
        work = sum(left * self._usual(study, usual) for study, left in self._left.items())
        return work * (self._clock() - self._start) / self._worked

    def _usual(self, study: str, otherwise: float) -> float:
        spent = self._spent.get(study)
        return sum(spent) / len(spent) if spent else otherwise
