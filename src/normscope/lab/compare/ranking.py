"""Who is better than whom: the best first, and of each pair the paired difference with its interval."""

from dataclasses import dataclass

from normscope.lab.runs import Runs
from normscope.lab.statistics import Interval, confidence_interval
from normscope.lab.verdict import CONFIDENCE


@dataclass(frozen=True)
class Ranked:
    """A variant's place.

    Args:
        name: of the variant.
        loss: its interval over the seeds, by itself.
        behind: how far its loss is above the best one's, from pairs; None for the best.
    """

    name: str
    loss: Interval
    behind: Interval | None

    @property
    def differs(self) -> bool:
        """Whether it is worse than the best beyond chance."""
        return self.behind is not None and self.behind.low > 0


def ranking(runs: Runs, figure: str = "loss") -> list[Ranked]:
    """All variants, the smallest mean first.

    Which one is the best is seen in the same runs, so any two might have been compared: the intervals are those of all
    pairs together.

    >>> runs = Runs({"a": [{"loss": 1.0}, {"loss": 1.2}], "b": [{"loss": 2.0}, {"loss": 2.2}]}, seeds=(0, 1))
    >>> [(one.name, one.differs) for one in ranking(runs)]
    [('a', False), ('b', True)]
    """
    names = sorted(runs.variants, key=lambda name: runs.mean(name, figure))
    pairs = max(1, len(names) * (len(names) - 1) // 2)
    best = runs.values(names[0], figure)
    found = []
    for name in names:
        values = runs.values(name, figure)
        differences = [value - other for value, other in zip(values, best, strict=True)]
        behind = confidence_interval(differences, 1 - (1 - CONFIDENCE) / pairs) if name != names[0] else None
        found.append(Ranked(name, runs.interval(name, figure), behind))
    return found
