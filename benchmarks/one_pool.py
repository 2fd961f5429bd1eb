"""Does a kernel get in the way of the matrix product that follows it?

.venv/bin/python benchmarks/one_pool.py

A product by itself, and after a norm, of which only the product is timed; with torch's LayerNorm and with normscope's,
whose threads are torch's own. A second pool of threads, spinning on the same cores, would show here.
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
    """The median time of the product after each of the works, taken in turns."""
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
    title = f"the time of a product after a norm, against after torch's, {torch.get_num_threads()} threads"
    found = Table("product", "after normscope's LayerNorm", "after another product", title=title, box=None)
    for rows, width, hidden in SIZES:
        theirs, ours, plain = answer(torch.randn(rows, width), torch.randn(width, hidden))
        found.add_row(f"{rows} x {width} x {hidden}", f"{ours / theirs:.2f}", f"{plain / theirs:.2f}")
    return found


if __name__ == "__main__":
    keep_freed_memory()
    Console(width=120).print(table())
