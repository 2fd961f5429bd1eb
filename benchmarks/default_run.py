"""What loss does the default run reach, at which cost, and what does a 2 GB corpus add?

.venv/bin/python benchmarks/default_run.py

The default run is `normscope train` on the built-in stories, whose entropy is known: the loss is shown next to that
floor. For memory, the same small model is trained for a few steps on generated texts of 1 MB and 2 GB; the difference
is the cost of corpus size. Memory is the peak resident set size of the process.
"""

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from peers import Outcome, run

MEGABYTE = 1_000_000


def default_run() -> tuple[Outcome, float, float]:
    """Cost of the run, the bits per byte it reached, and the entropy floor."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        outcome = run([sys.executable, "-m", "normscope", "train", "--out", folder])
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        floor = next(event["floor"] for event in events if event["kind"] == "started")
        reached = min(event["bits_per_byte"] for event in events if event["kind"] == "validation")
    return outcome, reached, floor


def on_a_text_of(size: int) -> Outcome:
    """Twenty steps of a small model on a text of this many bytes, from text to checkpoint."""
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        line = "".join(f"{i} green bottles hanging on the wall.\n" for i in range(25_000)).encode()
        with text.open("wb") as file:
            for _ in range(-(-size // len(line))):
                file.write(line)
        settings = ("--tokenizer", "bytes", "--depth", "2", "--steps", "20")
        return run([sys.executable, "-m", "normscope", "train", text, "--out", Path(place) / "run", *settings])


def table() -> Table:
    found = Table("", "result", title="the default run and a large corpus", box=None)
    outcome, reached, floor = default_run()
    found.add_row("default run, from command to report", f"{outcome.seconds:.0f} s")
    found.add_row("validation, bits per byte", f"{reached:.3f}")
    found.add_row("entropy floor", f"{floor:.3f}")
    found.add_row("above the entropy floor", f"{reached - floor:.3f}")
    found.add_row("peak memory", f"{outcome.memory / MEGABYTE:,.0f} MB")
    small, large = on_a_text_of(MEGABYTE), on_a_text_of(2000 * MEGABYTE)
    found.add_row("20 steps on 1 MB of text: peak memory", f"{small.memory / MEGABYTE:,.0f} MB")
    found.add_row("20 steps on 2 GB of text: peak memory", f"{large.memory / MEGABYTE:,.0f} MB")
    found.add_row("20 steps on 2 GB of text, including preparation", f"{large.seconds:.0f} s")
    return found


if __name__ == "__main__":
    Console(width=120).print(table())
