"""Run the benchmarks and write docs/performance.md: `make bench`

Takes about ten minutes, or half an hour with `make bench NANOGPT=CHECKOUT TEXT=tinyshakespeare.txt`, which adds the
comparisons with nanoGPT. Run it on an idle machine. Sections that are not measured stay unchanged, with their date.
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table

import busy_machine
import decoding
import default_run
import fuse_speed
import layer_speed
import nanogpt_step
import rank_checkpoints
import ranks
import step_speed
import thread_pool
import time_to_quality
import xray_overhead
from normscope.storage.files import write_atomically
from normscope.training.doctor import cpu_name

TARGET = Path(__file__).parent.parent / "docs" / "performance.md"


@dataclass(frozen=True)
class Arguments:
    """Paths of other projects, and what to measure."""

    nanogpt: Path | None = None
    """A checkout of nanoGPT."""

    text: Path | None = None
    """tiny Shakespeare, as a text file."""

    only: tuple[str, ...] = ()
    """Titles of the sections to measure (default: all that are possible)."""


@dataclass(frozen=True)
class Section:
    """A section of the page: its text, and the function that makes its table (None if a project is missing)."""

    title: str
    text: str
    make: Callable[[], Table] | None


def sections(given: Arguments) -> list[Section]:
    checkout, text = given.nanogpt, given.text
    return [
        Section(
            "Time to quality",
            "`benchmarks/time_to_quality.py --nanogpt CHECKOUT --text tinyshakespeare.txt`. The CPU recipe of "
            "nanoGPT's README against `normscope train tinyshakespeare.txt --recipe sprint`, from process start"
            " to checkpoint. Both models are evaluated the same way, on the last tenth of the characters in "
            "windows of 64.",
            None if checkout is None or text is None else lambda: time_to_quality.table(checkout, text),
        ),
        Section(
            "Default run",
            "`benchmarks/default_run.py`. `normscope train` on the built-in stories, and the cost of a large corpus.",
            default_run.table,
        ),
        Section(
            "GPT-2 training step",
            "`benchmarks/nanogpt_step.py --nanogpt CHECKOUT`. Forward, loss, backward, gradient clipping and "
            "AdamW, as in each project's training loop.",
            None if checkout is None else lambda: nanogpt_step.table(checkout),
        ),
        Section(
            "Decoding",
            "`benchmarks/decoding.py --nanogpt CHECKOUT`. One sequence, random weights; ratios for the three "
            "prompt lengths. The limit is the time to read every weight once per token, in its storage format.",
            None if checkout is None else lambda: decoding.table(checkout),
        ),
        Section(
            "Layers",
            "`benchmarks/layer_speed.py --compile`. Forward and backward; medians of interleaved runs, with "
            "glibc's default allocator, and with one that keeps freed memory, which saves torch the page faults"
            " of its temporaries. `target` was set before the kernels were written, from a trial of one of "
            "them; a star marks a missed target. The limit is the time to move the required bytes at the speed "
            "of a copy between buffers of that size; more than 100% means that some were still in the cache. "
            "The last column is the memory saved for backward, relative to torch's.",
            lambda: layer_speed.table(compiled=True),
        ),
        Section(
            "Training step",
            "`benchmarks/step_speed.py`. Forward, loss and backward of the presets, against the same model in "
            "plain torch, and where the time goes.",
            step_speed.table,
        ),
        Section(
            "Hugging Face models",
            "`benchmarks/fuse_speed.py`. Forward, loss and backward of Hugging Face models, before and after "
            "`normscope.fuse(model)`.",
            fuse_speed.table,
        ),
        Section(
            "X-ray",
            "`benchmarks/xray_overhead.py`. The CPU time of a training step under the x-ray, which measures all of "
            "the first 20 steps and then every seventh, and of a step after it has ended, against a plain step.",
            xray_overhead.table,
        ),
        Section(
            "Several ranks",
            "`benchmarks/ranks.py`. A training step of `normscope train --nproc 2`, and what torchrun costs one rank.",
            ranks.table,
        ),
        Section(
            "Checkpoints of several ranks",
            "`benchmarks/rank_checkpoints.py`. Saving and loading, synced to the disk and with checksums verified.",
            rank_checkpoints.table,
        ),
        Section(
            "Busy machine",
            "`benchmarks/busy_machine.py`. Training and decoding steps while other processes use the cores, "
            "with fixed and with adapted threads, each in a separate process; interleaved.",
            busy_machine.table,
        ),
        Section(
            "Thread pool",
            "`benchmarks/thread_pool.py`. A kernel runs on torch's threads, so that it doesn't slow the matmul "
            "after it.",
            thread_pool.table,
        ),
    ]


HEAD = """\
# Performance

`make bench` writes this page. Ratios compare measurements of the same run; they differ between machines.

In short: on a CPU, normscope trains a small model to nanoGPT's quality in about a tenth of the time, mostly because of
a better recipe. RMSNorm, ReLU² and BatchNorm gain most from the kernels, GroupNorm and the LayerNorms little. A call
of a kernel goes through Python, which shows below 100,000 elements: small LayerNorms and GroupNorms are slower than
torch's. Everything is faster than torch.compile.
"""


def _machine() -> str:
    found = f"{torch.get_num_threads()} threads, {cpu_name()}, Python {platform.python_version()}"
    return f"Measured on {date.today()}: {found}, torch {torch.__version__}."


def markdown(table: Table) -> str:
    """Convert a rich table to markdown."""
    cells = [[str(column.header), *(str(cell) for cell in column.cells)] for column in table.columns]
    head, *rows = zip(*cells, strict=True)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _known() -> dict[str, str]:
    """Existing sections of the page."""
    parts = TARGET.read_text(encoding="utf-8").split("\n## ")[1:] if TARGET.exists() else []
    return {part.partition("\n")[0]: f"## {part.strip()}\n" for part in parts}


def main() -> None:
    arguments = tyro.cli(Arguments)
    console, known, found = Console(width=140), _known(), sections(arguments)
    for section in found:
        if section.make is None or (arguments.only and section.title not in arguments.only):
            continue
        table = section.make()
        console.print(table)
        body = f"{section.text}\n\n{_machine()}\n\n{table.title}:\n\n{markdown(table)}\n"
        known[section.title] = f"## {section.title}\n\n{body}"
        # After each section, so that an interruption loses one measurement and not all.
        page = [HEAD, *(known[each.title] for each in found if each.title in known)]
        write_atomically(TARGET, "\n".join(page))
        console.print(f"written to {TARGET.name}")


if __name__ == "__main__":
    main()
