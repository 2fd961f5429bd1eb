"""Run the benchmarks of the kernels and write docs/performance.md: `make bench`

It takes some ten minutes. Run it on a machine with nothing else to do.
"""

import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import fuse_speed
import layer_speed
import one_pool
import step_speed

TARGET = Path(__file__).parent.parent / "docs" / "performance.md"

SECTIONS: tuple[tuple[str, str, Callable[[], Table]], ...] = (
    (
        "Layers",
        "`benchmarks/layer_speed.py --compile`. Forward and backward, the layers taken in turns, medians; with glibc's "
        "allocator as it is, and with one that keeps what it has, which spares torch's chains of operations the page "
        "faults of their temporaries. `wanted` is the mark that was set before the kernels were written, from a trial "
        "of one of them; a star shows where it is missed. The limit is the time that the "
        "bytes which must move would take at the speed of a copy between buffers as large as all of them; more than "
        "100% means that some were still in the cache. The last column compares what is kept for the backward pass.",
        lambda: layer_speed.table(compiled=True),
    ),
    (
        "A training step",
        "`benchmarks/step_speed.py`. Forward, loss and backward of the presets, against the same model in plain torch, "
        "and where the time goes.",
        step_speed.table,
    ),
    (
        "Models of other people",
        "`benchmarks/fuse_speed.py`. Forward, loss and backward of models of transformers, before and after "
        "`normscope.fuse(model)`.",
        fuse_speed.table,
    ),
    (
        "One pool of threads",
        "`benchmarks/one_pool.py`. A kernel runs on torch's own threads, so the product after it is not slowed.",
        one_pool.table,
    ),
)


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def markdown(table: Table) -> str:
    """A table of rich's as one of markdown's."""
    cells = [[str(column.header), *(str(cell) for cell in column.cells)] for column in table.columns]
    head, *rows = zip(*cells, strict=True)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    console, parts = Console(width=120), []
    for title, text, make in SECTIONS:
        table = make()
        console.print(table)
        parts.append(f"## {title}\n\n{text}\n\n{table.title}:\n\n{markdown(table)}\n")
    machine = f"{torch.get_num_threads()} threads, {_processor()}, Python {platform.python_version()}, torch "
    head = (
        "# Performance\n\n"
        f"Written by `make bench` on {date.today()}: {machine}{torch.__version__}. Figures are ratios between things "
        "measured in the same run; other machines give others.\n\n"
        "In short: RMSNorm, ReLU² and BatchNorm gain most, GroupNorm and the LayerNorms little, and a kernel's call "
        "costs some 25 us more than torch's, which shows at 768 x 128. Everything is faster than torch.compile.\n"
    )
    TARGET.write_text("\n".join([head, *parts]), encoding="utf-8")
    console.print(f"written to {TARGET.name}")


if __name__ == "__main__":
    main()
