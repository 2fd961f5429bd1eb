"""A run that takes a second, shared by the tests of the loop and imported by processes that will be killed."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from normscope.runs import checksummed_folder
from normscope.runs.run import Run
from normscope.training.create_run import create_run
from normscope.training.loop import train_run
from normscope.training.recipes import Recipe

TEXT = "".join(f"{i} bottles of milk on the wall, {i} bottles of milk.\n" for i in range(300))
RECIPE = Recipe(
    preset="nanochat",
    model={"depth": 2, "width": 16, "heads": 2, "context": 16, "dropout": 0.1},
    train={"steps": 100, "batch": 4, "eval_every": 40, "sample_every": 0, "save_every": 7},
    tokenizer="characters",
)


def new_run(folder: Path, model: dict[str, Any] | None = None, **settings: Any) -> Run:
    """A new run in folder/run, on a text in folder/text.txt."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    return create_run(folder / "run", [text], RECIPE, model=model, train=settings, val_fraction=0.02)


def train_alone(folder: str, until: int | None = None) -> None:
    """Train a run with one thread, in a process that a test starts and kills."""
    torch.set_num_threads(1)
    train_run(Run.open(Path(folder)), until=until)


def warm_up() -> None:
    """Train a small run, so that processes forked afterwards have all modules and kernels, which take longer."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="normscope-warm-up-") as folder:
        train_run(new_run(Path(folder), steps=2, xray_every=1))


def last_sums(run: Run) -> dict[str, str]:
    """Checksums of the tensors in the last checkpoint."""
    step = run.checkpoints.last()
    assert step is not None
    sums = checksummed_folder.checksums(run.checkpoints.path(step))
    return {name: value for name, value in sums.items() if name.endswith(".safetensors")}
