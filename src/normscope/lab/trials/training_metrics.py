"""What is measured of any training: the smoothed loss, and the costs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor
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


def training_metrics(losses: Sequence[float], times: Sequence[float], uniform_loss: float) -> dict[str, Any]:
    """The smoothed training loss, at most twice that of a uniform guess, and the median seconds per step."""
    return {
        "curve": thinned([min(loss, 2 * uniform_loss) for loss in losses]),
        "seconds_per_step": sorted(times)[len(times) // 2] if times else 0.0,
    }
