"""How long until a validation loss of 1.88 on tiny Shakespeare, compared with nanoGPT's CPU recipe?

.venv/bin/python benchmarks/time_to_quality.py --nanogpt CHECKOUT --text tinyshakespeare.txt

nanoGPT uses the recipe of its README: depth 4, width 128, context 64, 2000 steps with batch size 12. Ours is `normscope
train TEXT --recipe sprint`. Both commands are timed from process start to checkpoint. Both models are then evaluated
the same way, over the full validation split, the last tenth of the characters, in windows of 64.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peers import NANOGPT_CPU, ask, nanogpt_with_characters, run

REPEATS = 3

_MEASURE_NANOGPT = """
import json, sys, numpy as np, torch
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
saved = torch.load(sys.argv[1] + "/out-shakespeare-char/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"])).eval()
model.load_state_dict(saved["model"])
tokens = torch.from_numpy(np.fromfile(sys.argv[1] + "/data/shakespeare_char/val.bin", dtype=np.uint16).astype(np.int64))
total = count = 0
with torch.no_grad():
    for i in range(0, len(tokens) - 1, 64):
        x, y = tokens[i : min(i + 64, len(tokens) - 1)], tokens[i + 1 : i + 65]
        total += model(x[None], y[None])[1].item() * len(y)
        count += len(y)
print(json.dumps([total / count, sum(p.numel() for p in model.parameters())]))
"""

_MEASURE_OURS = """
import json, sys
from pathlib import Path
from normscope.data.batches import windows
from normscope.training.validation import evaluate
from normscope.runs.run import Run
run = Run.open(Path(sys.argv[1]))
model, _ = run.load_model("last")
print(json.dumps([evaluate(model, windows(run.corpus().validation, 64, 64), 1.0).loss, model.parameter_count()]))
"""


@dataclass(frozen=True)
class Result:
    seconds: float
    loss: float
    parameters: int


def nanogpt(checkout: Path, text: Path) -> Result:
    with nanogpt_with_characters(checkout, text) as copy:
        outcome = run([sys.executable, "train.py", *NANOGPT_CPU], copy)
        loss, parameters = ask(_MEASURE_NANOGPT, copy)
    return Result(outcome.seconds, loss, parameters)


def ours(text: Path) -> Result:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        start = time.time()
        run([sys.executable, "-m", "normscope", "train", text, "--recipe", "sprint", "--out", folder])
        (manifest,) = folder.glob("checkpoints/*/manifest.json")
        seconds = manifest.stat().st_mtime - start
        loss, parameters = ask(_MEASURE_OURS, folder)
    return Result(seconds, loss, parameters)


def table(checkout: Path, text: Path) -> Table:
    rounds = [
        (nanogpt(checkout, text), ours(text))
        for _ in track(range(REPEATS), "runs", console=Console(stderr=True), transient=True)
    ]
    found = Table("", "seconds", "validation loss", "parameters", title="tiny Shakespeare, medians of 3", box=None)
    times = []
    for name, results in zip(("nanoGPT", "normscope"), zip(*rounds, strict=True), strict=True):
        times.append(statistics.median(result.seconds for result in results))
        losses = " ".join(f"{result.loss:.3f}" for result in results)
        found.add_row(name, f"{times[-1]:.1f}", losses, f"{results[0].parameters:,}")
    found.add_row("ratio", f"{times[0] / times[1]:.1f} x", "", "")
    return found


@dataclass(frozen=True)
class Arguments:
    nanogpt: Path
    text: Path


if __name__ == "__main__":
    arguments = tyro.cli(Arguments)
    Console(width=120).print(table(arguments.nanogpt, arguments.text))
