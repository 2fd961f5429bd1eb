"""How long does a training step take, compared with nanoGPT's model.py at the same sizes?

.venv/bin/python benchmarks/nanogpt_step.py --nanogpt CHECKOUT

A step is what both training loops do: forward, loss, backward, gradient clipping, AdamW, each in the project's own way.
The model is nanoGPT's GPT-2 and normscope's `gpt2` preset: the same math and number of weights. They run interleaved in
separate processes, because normscope's training keeps freed memory, which is a process setting.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peers import ask

SIZES = (
    # depth, width, heads, context, vocabulary, batch
    (4, 128, 4, 64, 65, 12),
    (6, 384, 6, 256, 65, 8),
    (6, 384, 6, 256, 50304, 4),
)
REPEATS = 5

_TIMED = """
import json, statistics, sys, time
import torch
depth, width, heads, context, vocabulary, batch = map(int, sys.argv[2].split(","))
torch.manual_seed(0)
tokens = torch.randint(vocabulary, (batch, context + 1))
x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
{setup}
for _ in range(5):
    step()
times = []
while len(times) < 10 or sum(times) < 3:
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
print(json.dumps([statistics.median(times), count]))
"""

_NANOGPT = _TIMED.format(
    setup="""
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
model = GPT(GPTConfig(context, vocabulary, depth, heads, width, 0.0, True))
optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
count = sum(p.numel() for p in model.parameters())
def step():
    _, loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
"""
)

_OURS = _TIMED.format(
    setup="""
import numpy as np
from normscope import GPT, gpt2
from normscope.runtime.memory import keep_freed_memory
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer
keep_freed_memory()
model = GPT(gpt2(vocab_size=vocabulary, context=context, depth=depth, width=width, heads=heads))
class Same:
    def batch(self, number):
        return x.numpy(), y.numpy()
config = TrainConfig(steps=1000000, batch=batch, optimizer="adamw", matrix_lr=1e-3, lr=1e-3, weight_decay=0.1)
step = Trainer(model, config, Same()).step
count = model.parameter_count()
"""
)


def table(checkout: Path) -> Table:
    title = f"a GPT-2 training step, normscope vs. nanoGPT, {torch.get_num_threads()} threads"
    found = Table(
        "size", "tokens per step", "parameters", "nanoGPT, ms", "normscope, ms", "speedup", title=title, box=None
    )
    for sizes in track(SIZES, "steps", console=Console(stderr=True), transient=True):
        text = ",".join(map(str, sizes))
        depth, width, _, context, vocabulary, batch = sizes
        times: list[list[float]] = [[], []]
        for _ in range(REPEATS):
            for found_times, script in zip(times, (_NANOGPT, _OURS), strict=True):
                seconds, count = ask(script, checkout, text)
                found_times.append(seconds)
        theirs, mine = (statistics.median(found_times) * 1e3 for found_times in times)
        size = f"{depth} blocks of {width}, vocabulary {vocabulary:,}"
        found.add_row(
            size, f"{batch} x {context}", f"{count:,}", f"{theirs:.1f}", f"{mine:.1f}", f"{theirs / mine:.2f} x"
        )
    return found


@dataclass(frozen=True)
class Arguments:
    nanogpt: Path


if __name__ == "__main__":
    Console(width=120).print(table(tyro.cli(Arguments).nanogpt))
