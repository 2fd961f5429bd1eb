"""Peers that are measured beside normscope: where their checkouts are, and how a script runs in a process of its own.

nanoGPT's checkout is passed by its path; what it needs of a dataset is written to a copy.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NANOGPT_CPU = (
    *("config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1"),
    *("--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0"),
    *("--max_iters=2000", "--lr_decay_iters=2000"),
)
"""The settings of nanoGPT's README for a computer without a GPU."""


@dataclass(frozen=True)
class Outcome:
    """What a command took: seconds, and the most memory that it had in bytes."""

    seconds: float
    memory: int
    output: str


def run(command: Sequence[str | Path], folder: Path | None = None) -> Outcome:
    """Run a command to its end, alone."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(word) for word in command], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{text[-2000:]}")
    return Outcome(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), text)


def ask(script: str, *arguments: str | Path) -> Any:
    """Run Python code in a process of its own and return what it prints last, as JSON."""
    outcome = run([sys.executable, "-c", script, *arguments])
    return json.loads(outcome.output.strip().splitlines()[-1])


@contextmanager
def nanogpt_with_characters(checkout: Path, text: Path) -> Iterator[Path]:
    """A copy of nanoGPT whose shakespeare_char is this text: the first 90% to train on, the rest to validate with."""
    with tempfile.TemporaryDirectory(prefix="nanogpt-") as place:
        copy = Path(place) / "nanoGPT"
        shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "*.ipynb", "assets", "out*"))
        characters = text.read_text(encoding="utf-8")
        alphabet = sorted(set(characters))
        number = {character: i for i, character in enumerate(alphabet)}
        tokens = np.array([number[character] for character in characters], dtype=np.uint16)
        data, border = copy / "data" / "shakespeare_char", int(len(tokens) * 0.9)
        data.mkdir(parents=True, exist_ok=True)
        tokens[:border].tofile(data / "train.bin")
        tokens[border:].tofile(data / "val.bin")
        with (data / "meta.pkl").open("wb") as file:  # the only form in which nanoGPT takes the size of the vocabulary
            pickle.dump({"vocab_size": len(alphabet), "itos": dict(enumerate(alphabet)), "stoi": number}, file)
        yield copy
