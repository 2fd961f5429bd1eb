"""Shared by the benchmarks: interleaved timing of several functions, and memory speed."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]


def medians(works: Sequence[Work], repeats: int = 15, least: float = 4e-3) -> list[float]:
    """Median time of each function, in seconds.

    Functions are interleaved, so that load on the machine affects all of them; each runs several times in a row per
    turn, so that it finds its memory in the cache as in a real loop.
    """
    counts = [_how_often(work, least) for work in works]
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, count, found in zip(works, counts, times, strict=True):
            found.append(_seconds(work, count))
    return [statistics.median(found) for found in times]


def _how_often(work: Work, least: float) -> int:
    """Number of calls that take about `least` seconds, after a warm-up."""
    for _ in range(3):
        work()
    return max(1, round(least / max(_seconds(work, 3), 1e-7)))


def _seconds(work: Work, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - start) / count


def copy_seconds(numbers: int) -> float:
    """Time to copy this many float32 values on all cores."""
    source, target = torch.randn(numbers), torch.empty(numbers)
    (copy,) = medians([lambda: target.copy_(source)])
    return copy
