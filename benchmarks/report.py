"""Run the benchmarks and write docs/performance.md: `make bench`

It takes some ten minutes, and half an hour with `make bench NANOGPT=CHECKOUT TEXT=tinyshakespeare.txt`, which brings in
the comparisons with nanoGPT. Run it on a machine with nothing else to do. Sections that are not measured stay as they
are in the file, with their date.
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
import one_pool
import step_speed
import time_to_quality
import xray_overhead
from normscope.training.doctor import cpu_name

TARGET = Path(__file__).parent.parent / "docs" / "performance.md"


@dataclass(frozen=True)
class Arguments:
    """Where peers are, and what to measure."""

    nanogpt: Path | None = None
    """A checkout of nanoGPT."""

    text: Path | None = None
    """tiny Shakespeare, as a text file."""

    only: tuple[str, ...] = ()
    """Titles of the sections to measure; all that can be, unless told."""


@dataclass(frozen=True)
class Section:
    """A part of the page: what it says, and what makes its table; None where a peer is missing."""

    title: str
    text: str
    make: Callable[[], Table] | None


def sections(given: Arguments) -> list[Section]:
    checkout, text = given.nanogpt, given.text
    return [
        Section(
            "Time to quality",
            "`benchmarks/time_to_quality.py --nanogpt CHECKOUT --text tinyshakespeare.txt`. The recipe of "
            "nanoGPT's README for a CPU against `normscope train tinyshakespeare.txt --recipe sprint`, from the "
            "start of the process to the checkpoint; both models measured alike, over the last tenth of the "
            "characters in windows of 64.",
            None if checkout is None or text is None else lambda: time_to_quality.table(checkout, text),
        ),
        Section(
            "The default run",
            "`benchmarks/default_run.py`. `normscope train` on the built-in stories, and what a large corpus costs.",
            default_run.table,
        ),
        Section(
            "A step of GPT-2",
            "`benchmarks/nanogpt_step.py --nanogpt CHECKOUT`. Forward, loss, backward, clipping and AdamW, as "
            "each project's training has them.",
            None if checkout is None else lambda: nanogpt_step.table(checkout),
        ),
        Section(
            "Decoding",
            "`benchmarks/decoding.py --nanogpt CHECKOUT`. One text, random weights. Ratios for the three prompts. "
            "The limit is the time to read every weight once a token, in the format it has.",
            None if checkout is None else lambda: decoding.table(checkout),
        ),
        Section(
            "Layers",
            "`benchmarks/layer_speed.py --compile`. Forward and backward, the layers taken in turns, medians; "
            "with glibc's allocator as it is, and with one that keeps what it has, which spares torch's chains of "
            "operations the page faults of their temporaries. `wanted` is the mark that was set before the "
            "kernels were written, from a trial of one of them; a star shows where it is missed. The limit is the "
            "time that the bytes which must move would take at the speed of a copy between buffers as large as "
            "all of them; more than 100% means that some were still in the cache. The last column compares what "
            "is kept for the backward pass.",
            lambda: layer_speed.table(compiled=True),
        ),
        Section(
            "A training step",
            "`benchmarks/step_speed.py`. Forward, loss and backward of the presets, against the same model in "
            "plain torch, and where the time goes.",
            step_speed.table,
        ),
        Section(
            "Models of other people",
            "`benchmarks/fuse_speed.py`. Forward, loss and backward of models of transformers, before and after "
            "`normscope.fuse(model)`.",
            fuse_speed.table,
        ),
        Section(
            "The x-ray",
            "`benchmarks/xray_overhead.py`. A training step while the x-ray looks, and after it has gone, against "
            "a plain one, the three taken in turns.",
            xray_overhead.table,
        ),
        Section(
            "A busy machine",
            "`benchmarks/busy_machine.py`. Steps of training and decoding while other processes use the cores, with "
            "fixed settings and with adapted threads, each in a process of its own, in turns.",
            busy_machine.table,
        ),
        Section(
            "One pool of threads",
            "`benchmarks/one_pool.py`. A kernel runs on torch's own threads, so the product after it is not slowed.",
            one_pool.table,
        ),
    ]


HEAD = """\
# Performance

Written by `make bench`. Figures are ratios between things measured in the same run; other machines give others.

In short: on a CPU a small model is trained to nanoGPT's quality in about a tenth of its time, most of it by a better
recipe. RMSNorm, ReLU² and BatchNorm gain most of the kernels, GroupNorm and the LayerNorms little, and a kernel's call
costs some 25 us more than torch's, which shows at 768 x 128. Everything is faster than torch.compile.
"""


def _machine() -> str:
    found = f"{torch.get_num_threads()} threads, {cpu_name()}, Python {platform.python_version()}"
    return f"Measured on {date.today()}: {found}, torch {torch.__version__}."


def markdown(table: Table) -> str:
    """A table of rich's as one of markdown's."""
    cells = [[str(column.header), *(str(cell) for cell in column.cells)] for column in table.columns]
    head, *rows = zip(*cells, strict=True)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _known() -> dict[str, str]:
    """The sections that the page has."""
    parts = TARGET.read_text(encoding="utf-8").split("\n## ")[1:] if TARGET.exists() else []
    return {part.partition("\n")[0]: f"## {part.strip()}\n" for part in parts}


def main() -> None:
    arguments = tyro.cli(Arguments)
    console, known, page = Console(width=140), _known(), [HEAD]
    for section in sections(arguments):
        wanted = not arguments.only or section.title in arguments.only
        if section.make is not None and wanted:
            table = section.make()
            console.print(table)
            body = f"{section.text}\n\n{_machine()}\n\n{table.title}:\n\n{markdown(table)}\n"
            known[section.title] = f"## {section.title}\n\n{body}"
        if section.title in known:
            page.append(known[section.title])
    TARGET.write_text("\n".join(page), encoding="utf-8")
    console.print(f"written to {TARGET.name}")


if __name__ == "__main__":
    main()
