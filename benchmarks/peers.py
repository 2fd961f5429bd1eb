"""Run scripts of other projects (nanoGPT) in separate processes, to compare with normscope.

The path of a nanoGPT checkout is an argument; its dataset files are written to a copy.
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
"""Settings of nanoGPT's README for a CPU."""


@dataclass(frozen=True)
class Outcome:
    """Cost of a command: seconds, and peak memory in bytes."""

    seconds: float
    memory: int
    output: str


def run(command: Sequence[str | Path], folder: Path | None = None) -> Outcome:
    """Run a command and wait for it."""
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
    """Run Python code in a separate process and parse its last printed line as JSON."""
    outcome = run([sys.executable, "-c", script, *arguments])
    return json.loads(outcome.output.strip().splitlines()[-1])


@contextmanager
def nanogpt_with_characters(checkout: Path, text: Path) -> Iterator[Path]:
    """A copy of nanoGPT with this text as shakespeare_char: the first 90% for training, the rest for validation."""
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
        with (data / "meta.pkl").open("wb") as file:  # the only format in which nanoGPT reads the vocabulary size
            pickle.dump({"vocab_size": len(alphabet), "itos": dict(enumerate(alphabet)), "stoi": number}, file)
        yield copy
