"""How fast does GPT-2 small decode, compared with nanoGPT and transformers, and with the memory bandwidth limit?

.venv/bin/python benchmarks/decoding.py --nanogpt CHECKOUT

124 million random weights, one sequence, 64 sampled tokens after prompts of three lengths. nanoGPT has no KV cache, so
its time grows with the length; transformers and normscope have one. The limit is the time to read all weights once per
token at the read speed of torch, measured in the same process: the best of ten sums and ten matrix-vector products. The
smaller formats read fewer bytes and have their own limits.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peers import ask

PROMPTS = (1, 256, 900)
NEW = 64
REPEATS = 3

_TIMED = """
import json, sys, time
import torch
prompts, new = json.loads(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
{setup}
found = {{}}
for length in prompts:
    prompt = torch.randint(50257, (1, length))
    write(prompt, 2)
    start = time.perf_counter()
    write(prompt, new)
    found[length] = time.perf_counter() - start
numbers, vector, fastest = torch.randn(160_000, 768), torch.randn(768), 1e9
for _ in range(10):
    for read in (numbers.sum, lambda: numbers @ vector):
        start = time.perf_counter()
        read()
        fastest = min(fastest, time.perf_counter() - start)
print(json.dumps([found, numbers.nbytes / fastest]))
"""

_SETUPS = {
    "nanoGPT": """
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
model = GPT(GPTConfig(dropout=0.0)).eval()
def write(prompt, count):
    with torch.no_grad():
        assert model.generate(prompt, count).shape[1] == prompt.shape[1] + count
""",
    "transformers": """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(pad_token_id=0)).eval()
def write(prompt, count):
    with torch.no_grad():
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count, do_sample=True,
            top_k=0,
        )
    assert found.shape[1] == prompt.shape[1] + count
""",
}
for _format in ("float32", "bfloat16", "int8"):
    _SETUPS[f"normscope, {_format}"] = f"""
from normscope import GPT, gpt2
from normscope.generate.tokens import generate_tokens
from normscope.runtime.memory import keep_freed_memory
keep_freed_memory()
model = GPT(gpt2())
def write(prompt, count):
    (found,) = generate_tokens(model, prompt, max_new_tokens=count, weights="{_format}")
    assert len(found.tokens) == count
"""


def _measure(checkout: Path, name: str) -> tuple[dict[int, float], float]:
    script = _TIMED.format(setup=_SETUPS[name])
    rounds: list[Any] = [ask(script, checkout, json.dumps(PROMPTS), str(NEW)) for _ in range(REPEATS)]
    times = {length: statistics.median(round_[0][str(length)] for round_ in rounds) for length in PROMPTS}
    return times, statistics.median(round_[1] for round_ in rounds)


def table(checkout: Path) -> Table:
    title = f"{NEW} new tokens, GPT-2 small, {torch.get_num_threads()} threads"
    heads = [f"prompt of {length}: ms per token" for length in PROMPTS]
    found = Table("", *heads, "vs. nanoGPT", "vs. transformers", "of the limit", title=title, box=None)
    names = track(list(_SETUPS), "decoding", console=Console(stderr=True), transient=True)
    measured = {name: _measure(checkout, name) for name in names}
    bytes_of_weights = {"float32": 4, "bfloat16": 2, "int8": 1}
    for name, (times, speed) in measured.items():
        cells = [f"{times[length] / NEW * 1e3:.1f}" for length in PROMPTS]
        for peer in ("nanoGPT", "transformers"):
            ratios = [measured[peer][0][length] / times[length] for length in PROMPTS]
            cells.append(" / ".join(f"{ratio:.1f}" for ratio in ratios) + " x")
        kind = name.partition(", ")[2]
        limit = NEW * 124_439_808 * bytes_of_weights[kind] / speed if kind else None
        cells.append("" if limit is None else f"{limit / times[PROMPTS[0]]:.0%}")
        found.add_row(name, *cells)
    return found


@dataclass(frozen=True)
class Arguments:
    nanogpt: Path


if __name__ == "__main__":
    Console(width=140).print(table(tyro.cli(Arguments).nanogpt))
