"""Write the table of each format's page: which model goes in and out, and the largest difference measured.

    python -m tests.exporting.matrix [FORMAT ...] [--write]

Each cell exports a small model with random weights, which is proved in the target's runtime, and reads it back.
"""

import argparse
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import normscope
from normscope.comparing.behavior import centered, logit_distances
from normscope.comparing.runtime import FloatArray, GPTRuntime
from normscope.errors import ConfigError, NormscopeError
from normscope.exporting.export import FORMATS, Exported, export, export_source
from normscope.exporting.model_source import ModelSource
from normscope.interop.checkpoint import build_model
from normscope.interop.nano.nanochat import read_nanochat
from normscope.models.gpt import GPT
from tests.exporting.families import source_of
from tests.exporting.models import small_source
from tests.interop import karpathy_models
from tests.support import random_tokens

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"nanogpt": "nanochat.md", "hf": "huggingface.md"}
"""The pages that are not called as their format."""
PRESETS = ("gpt2", "llama", "nanochat", "nanochat-2026-07")
IMPORTED = (
    "mistral, window", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3", "phi3, part", "smollm3", "neox"
)  # fmt: skip
MODELS = (*PRESETS, *IMPORTED)
START, END = "<!-- python -m tests.exporting.matrix {to} --write -->", "<!-- end -->"
TEXT = "Once upon a time there was a cat. " * 40


@cache
def source(model: str) -> ModelSource:
    return small_source(model, "bytes", width=64) if model in PRESETS else source_of(model)


def distance(ours: FloatArray, theirs: FloatArray) -> float:
    return max(logit_distances(centered(ours), centered(theirs)))


def read_back(path: Path, expected: GPT) -> str:
    """The difference of the model that normscope reads from an export; a dash for formats that are not read."""
    try:
        found, _ = normscope.load(path)
    except NormscopeError:
        return "-"
    tokens = random_tokens(expected.config.vocab_size, 64).tolist()
    return f"{distance(GPTRuntime(expected).logits(tokens), GPTRuntime(found).logits(tokens)):.0e}"


def out(done: Exported) -> str:
    proof = done.proof
    assert proof is not None
    assert proof.diff is not None
    assert proof.diff.behavior is not None
    rounding = f" ({proof.rounding:.2g})" if proof.rounding > 0 else ""
    return f"{proof.diff.behavior.distance:.0e}{rounding}"


def row(to: str, model: str) -> list[str]:
    """The largest difference in and out, for each weight format."""
    form, given = FORMATS[to], source(model)
    try:
        form.check(given)
    except ConfigError:
        return ["refused"] * (1 + len(form.weights))
    found, read = [], []
    with tempfile.TemporaryDirectory() as folder:
        for weights in form.weights:
            done = export_source(given, to, Path(folder) / f"m-{weights}{form.suffix}", weights, "require")
            found.append(out(done))
            read.append(read_back(done.path, form.plan.reference(given.model, weights)))
    return [max(read, key=lambda one: 0.0 if one == "-" else float(one)), *found]


def adapters(model: str) -> list[str]:
    """LoRA adapters on a Hugging Face folder of the model, in peft and read back."""
    given = source(model)
    try:
        FORMATS["hf"].check(given)
    except ConfigError:
        return ["refused"] * 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_source(given, "hf", folder / "base", "stored", "skip")
        (folder / "text.txt").write_text(TEXT)
        quiet: dict[str, Any] = {"quiet": True, "sample_every": 0}
        run = normscope.train(
            folder / "text.txt", init_from=folder / "base", out=folder / "run", steps=4, lora=2, lr=0.03, **quiet
        )
        done = export(run, "peft", out=folder / "adapter", proof="require")
        return [read_back(done.path, run.load_model()[0]), out(done)]


def nanochat(later: bool) -> list[str]:
    """A checkpoint as nanochat saves it, against the formulas of its code."""
    weights, tokens = karpathy_models.nanochat_weights(later=later), random_tokens(37, 1, 64)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        changes: dict[str, Any] = {"window_pattern": "SSSL"} if later else {}
        karpathy_models.save_nanochat(Path(folder), weights, **changes)
        expected = karpathy_models.nanochat_logits(weights, tokens, "SSSL" if later else "")
        found = build_model(read_nanochat(folder))(tokens)
    return [f"{distance(expected[0].numpy(), found[0].numpy()):.0e}", "refused"]


def rows(to: str) -> Iterator[list[str]]:
    for model in MODELS:
        cells = adapters(model) if to == "peft" else row(to, model)
        if to == "nanogpt" and model.startswith("nanochat"):
            cells = nanochat(later=model != "nanochat")
        print(to, model, *cells, sep=" | ", flush=True)
        yield [model, *cells]


def table(to: str) -> str:
    found = list(rows(to))
    refused = [one[0] for one in found if set(one[1:]) == {"refused"}]
    head = ["model", "in", *(f"out, {weights}" for weights in FORMATS[to].weights)]
    lines = [head, ["---"] * len(head), *(one for one in found if one[0] not in refused)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\nRefused: {'; '.join(refused)}." if refused else text


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the table of each format's page.")
    parser.add_argument("formats", nargs="*", choices=[[], *FORMATS], default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for to in options.formats or FORMATS:
        found, page = table(to), DOCS / PAGES.get(to, f"{to}.md")
        if options.write:
            start = START.format(to=to)
            before, _, rest = page.read_text(encoding="utf-8").partition(start)
            page.write_text(f"{before}{start}\n{found}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
