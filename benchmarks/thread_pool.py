"""Does a kernel slow the matmul after it?

.venv/bin/python benchmarks/thread_pool.py

Times a matmul alone, and after torch's or normscope's LayerNorm (only the matmul is timed). normscope runs on torch's
threads; a second thread pool spinning on the same cores would show here.
"""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import normscope
from normscope.runtime.memory import keep_freed_memory

SIZES = ((768, 128, 512), (2048, 384, 1536), (4096, 768, 3072))
REPEATS = 101


def product_seconds(before: list[Callable[[], object]], product: Callable[[], object]) -> list[float]:
    """Median time of the matmul after each of the functions, interleaved."""
    found: list[list[float]] = [[] for _ in before]
    for turn in range(REPEATS + 5):
        for work, times in zip(before, found, strict=True):
            work()
            start = time.perf_counter()
            product()
            if turn >= 5:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in found]


@torch.no_grad()
def answer(x: Tensor, weight: Tensor) -> list[float]:
    theirs, ours, other = nn.LayerNorm(x.shape[1]), normscope.LayerNorm(x.shape[1]), torch.randn(x.shape)
    works: list[Callable[[], object]] = [lambda: theirs(other), lambda: ours(other), lambda: other @ weight]
    return product_seconds(works, lambda: x @ weight)


def table() -> Table:
    title = f"time of a matmul after a norm, relative to after torch's norm, {torch.get_num_threads()} threads"
    found = Table("matmul", "after normscope's LayerNorm", "after another matmul", title=title, box=None)
    for rows, width, hidden in SIZES:
        theirs, ours, plain = answer(torch.randn(rows, width), torch.randn(width, hidden))
        found.add_row(f"{rows} x {width} x {hidden}", f"{ours / theirs:.2f}", f"{plain / theirs:.2f}")
    return found


if __name__ == "__main__":
    keep_freed_memory()
    Console(width=120).print(table())
