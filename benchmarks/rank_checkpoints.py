"""How long does it take to save and to load a checkpoint, on one rank and on two?

.venv/bin/python benchmarks/rank_checkpoints.py

A run is trained step by step, saved after each, and loaded again. Saving gathers what ranks share, writes and syncs the
files, and deletes old checkpoints. Loading builds the model, verifies checksums, reads, and computes the gradients of
one batch if there are several ranks.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from normscope.runs.metrics_file import MetricsFile
from normscope.runs.run import Run
from normscope.runtime.ranks import join_ranks
from normscope.training.session import TrainingSession
from peers import run

WAYS = {"1 rank": (1, "ddp"), "2 ranks, ddp": (2, "ddp"), "2 ranks, fsdp": (2, "fsdp")}


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    depth: int = 8
    repeats: int = 7

    worker: Path | None = None
    """Run folder; for the ranks that this benchmark starts."""


def measure(folder: Path, repeats: int) -> None:
    """Time saving and loading on this rank; rank 0 prints the medians."""
    ranks = join_ranks()
    opened = Run.open(folder)
    session = TrainingSession(opened, MetricsFile(opened.metrics) if ranks.is_main else None, [], ranks)
    session.begin(None)
    times: dict[str, list[float]] = {"save": [], "load": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        ranks.barrier()
        start = time.perf_counter()
        work()
        ranks.barrier()
        times[name].append(time.perf_counter() - start)

    for _ in range(repeats):
        session.trainer.step()
        session.mark_metrics()
        timed("save", session.save)
        timed("load", lambda: session.begin(session.step))
    if ranks.is_main:
        path = opened.checkpoints.path(session.step)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(json.dumps({name: statistics.median(found) for name, found in times.items()} | {"bytes": size}))


def answer(way: str, given: Arguments) -> dict[str, float]:
    size, parallel = WAYS[way]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        options = ["--depth", str(given.depth), "--steps", "1", "--parallel", parallel, "--out", str(folder), "--quiet"]
        run([sys.executable, "-m", "normscope", "train", *options])
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
        worker = [__file__, "--worker", str(folder), "--repeats", str(given.repeats)]
        output = run([sys.executable, *start, *worker]).output
    found: dict[str, float] = json.loads(next(line for line in output.splitlines() if line.startswith('{"save"')))
    return found


def table(given: Arguments | None = None) -> Table:
    given = Arguments() if given is None else given
    found = Table("", "MB", "save, s", "load, s", "save, relative", "load, relative", box=None)
    found.title = f"a checkpoint at depth {given.depth}, medians of {given.repeats}"
    answers = {way: answer(way, given) for way in WAYS}
    base = answers["1 rank"]
    for way, each in answers.items():
        ratios = (f"{each[name] / base[name]:.2f}" for name in ("save", "load"))
        found.add_row(way, f"{each['bytes'] / 1e6:.0f}", f"{each['save']:.3f}", f"{each['load']:.3f}", *ratios)
    return found


if __name__ == "__main__":
    arguments = tyro.cli(Arguments)
    if arguments.worker is not None:
        measure(arguments.worker, arguments.repeats)
    else:
        Console(width=120).print(table(arguments))
