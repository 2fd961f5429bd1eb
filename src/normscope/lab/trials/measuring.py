"""What trials measure: the smoothed loss and the costs of a training, and times that are compared with each other."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

POINTS = 40


def thinned(values: Sequence[float], points: int = POINTS) -> list[tuple[int, float]]:
    """Average equal segments, each placed at its middle step, counted from 1.

    >>> thinned([4.0, 2.0, 1.0, 1.0], points=2)
    [(1, 3.0), (3, 1.0)]
    """
    count = min(points, len(values))
    ends = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    return [((start + end + 1) // 2, sum(values[start:end]) / (end - start)) for start, end in pairwise(ends)]


def training_flops(loss: Callable[[], Tensor]) -> int:
    """Count the FLOPs of the matrix products of a forward and a backward pass.

    It changes gradients and running statistics, so pass a model that is not used afterwards.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> x = torch.ones(5, 3)
    >>> training_flops(lambda: layer(x).sum())  # forward, and backward to the weights: x needs no gradient
    240
    """
    # Fused attention is not counted on a CPU; matrix products are.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss().backward()
    return int(counter.get_total_flops())


def step_count(settings: Mapping[str, Any], flops: int) -> int:
    """The number of steps: `steps`, or as many as the compute budget `flops` allows at these FLOPs per step."""
    return max(1, round(settings["flops"] / flops)) if "flops" in settings else int(settings["steps"])


def timed(run: Iterable[float]) -> tuple[list[float], list[float]]:
    """Exhaust a training that yields the loss of each step; return the losses, and the seconds of each step."""
    losses, times, start = [], [], time.perf_counter()
    for loss in run:
        losses.append(loss)
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return losses, times


def training_metrics(
    model: nn.Module, losses: Sequence[float], times: Sequence[float], steps: int, flops: int, uniform_loss: float
) -> dict[str, Any]:
    """The smoothed training loss, at most twice that of a uniform guess, and the costs; `flops` are those of a step."""
    return {
        "curve": thinned([min(loss, 2 * uniform_loss) for loss in losses]),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "flops": flops * steps,
        "steps": steps,
        "seconds_per_step": sorted(times)[len(times) // 2] if times else 0.0,
    }


def times_in_turn(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each function once per round and collect the seconds that it returns.

    Neighbors see the machine in the same state, so ratios within a round are reliable. The order rotates, so that none
    is always first.

    >>> order = iter(range(4))
    >>> times_in_turn({"a": lambda: float(next(order)), "b": lambda: float(next(order))}, rounds=2)
    {'a': [0.0, 3.0], 'b': [1.0, 2.0]}
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for _ in range(rounds):
        for name in names:
            times[name].append(runs[name]())
        names = names[1:] + names[:1]
    return times


def median_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios within each round, which ignores those in which the state of the machine changes."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))
