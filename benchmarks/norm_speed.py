"""How fast are the norms over rows against torch.nn's, and how near the memory's limit? `make bench`

Forward and backward, float32, all cores, the two layers taken in turns. The limit is the time that the bytes which must
move (forward: x in, y out; backward: x and dy in, dx out) would take at the speed of a copy, measured in the same run
between buffers as large as all of these.
"""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import normscope

SHAPES = ((768, 128), (2048, 384), (4096, 768), (8192, 768))
LAYERS = (("RMSNorm", normscope.RMSNorm, nn.RMSNorm), ("LayerNorm", normscope.LayerNorm, nn.LayerNorm))
REPEATS = 41


def medians(works: list[Callable[[], object]]) -> list[float]:
    """The median time of each, in seconds, taken in turns after a warm-up."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(REPEATS + 5):
        for work, found in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if turn >= 5:
                found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def step(layer: nn.Module, x: Tensor, gradient: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], gradient)


def limit(rows: int, width: int) -> float:
    """The time to move five tensors of this shape, of which a copy moves two."""
    source, target = torch.randn(5 * rows * width), torch.empty(5 * rows * width)
    (copy,) = medians([lambda: target.copy_(source)])
    return copy / 2


if __name__ == "__main__":
    table = Table(
        "layer", "shape", "against torch.nn", "of the limit", title=f"{torch.get_num_threads()} threads", box=None
    )
    for name, ours, peer in LAYERS:
        for rows, width in SHAPES:
            x, gradient = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
            mine, theirs = medians([step(ours(width), x, gradient), step(peer(width), x, gradient)])
            table.add_row(name, f"{rows} x {width}", f"{theirs / mine:.2f} x", f"{limit(rows, width) / mine:.0%}")
    Console().print(table)
