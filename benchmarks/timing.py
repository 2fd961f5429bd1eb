"""What the benchmarks share: fair times of several works, and the speed of memory."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]


def medians(works: Sequence[Work], repeats: int = 15, least: float = 4e-3) -> list[float]:
    """The median time of each work, in seconds.

    Works are taken in turns, so that a busy moment of the machine falls on all of them; in each turn a work runs
    several times in a row, so that it meets its own memory in the cache, as it would in a loop of its own.
    """
    counts = [_how_often(work, least) for work in works]
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, count, found in zip(works, counts, times, strict=True):
            found.append(_seconds(work, count))
    return [statistics.median(found) for found in times]


def _how_often(work: Work, least: float) -> int:
    """How many calls take about so many seconds, after a warm-up."""
    for _ in range(3):
        work()
    return max(1, round(least / max(_seconds(work, 3), 1e-7)))


def _seconds(work: Work, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - start) / count


def copy_seconds(numbers: int) -> float:
    """The time to copy so many float32 numbers, on all cores: what memory can do."""
    source, target = torch.randn(numbers), torch.empty(numbers)
    (copy,) = medians([lambda: target.copy_(source)])
    return copy
