"""How much faster do two ranks train than one, and what does torchrun cost?

.venv/bin/python benchmarks/ranks.py

Short runs of `normscope train` on the built-in stories, each in new processes and in turn, with fixed numbers of
threads. The run times its steps itself, in metrics.jsonl; the median counts. Ratios are those of a round, medians
over the rounds: below 1.00 is faster.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peers import run

WARM_UP = 5
PLAIN, TWO_THREADS = "1 rank, 1 thread", "1 rank, 2 threads"
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    PLAIN: (1, ()),
    "torchrun, 1 rank, 1 thread": (1, ("--nproc", "1")),
    TWO_THREADS: (2, ()),
    "ddp, 2 ranks, 1 thread each": (1, ("--nproc", "2")),
    "fsdp, 2 ranks, 1 thread each": (1, ("--nproc", "2", "--parallel", "fsdp")),
}
"""Threads of each process, and options of `normscope train`."""


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    depths: tuple[int, ...] = (4, 8)
    steps: int = 60
    rounds: int = 5


def step_seconds(depth: int, steps: int, way: str) -> float:
    """Median time of a step of a new run."""
    threads, options = WAYS[way]
    fixed = ["env", f"OMP_NUM_THREADS={threads}", "NORMSCOPE_THREADS=fixed"]
    quiet = ["--quiet", *(word for name in ("eval", "sample", "save") for word in (f"--{name}-every", "0"))]
    size = ["--depth", str(depth), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run([*fixed, sys.executable, "-m", "normscope", "train", *size, *quiet, *options, "--out", folder])
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times: list[float] = [event["seconds"] for event in events if event["kind"] == "step"]
    return statistics.median(times[WARM_UP:])


def table(given: Arguments | None = None) -> Table:
    given = Arguments() if given is None else given
    title = f"time of a training step, {given.rounds} rounds"
    found = Table("depth", "", "ms", f"vs. {PLAIN}", f"vs. {TWO_THREADS}", title=title, box=None)
    for depth in given.depths:
        rounds = track(range(given.rounds), f"depth {depth}", console=Console(stderr=True), transient=True)
        times = [{way: step_seconds(depth, given.steps, way) for way in WAYS} for _ in rounds]
        for way in WAYS:
            ratios = [statistics.median(each[way] / each[base] for each in times) for base in (PLAIN, TWO_THREADS)]
            milliseconds = statistics.median(each[way] for each in times) * 1e3
            found.add_row(str(depth), way, f"{milliseconds:.1f}", *(f"{ratio:.2f}" for ratio in ratios))
    return found


if __name__ == "__main__":
    Console(width=120).print(table(tyro.cli(Arguments)))
