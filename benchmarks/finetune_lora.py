"""How long does a finetuning step with LoRA take, and how much memory, compared with peft and transformers?

.venv/bin/python benchmarks/finetune_lora.py

Both finetune the same folder, a GPT-2 of 124 million random weights in float32, on the same batches of 4 x 256 tokens:
rank 8 on all linear layers of attention and MLP, AdamW, gradient clipping. Each runs alone in a process of its own, in
turns; memory is the peak of the process above what it had after the imports.
"""

import statistics
import tempfile
from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

from peers import ask

_MAKE = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
config = GPT2Config(n_layer=int(sys.argv[2]), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
print("null")
"""

_TIMED = """
import json, statistics, sys, time
from pathlib import Path
import numpy as np
import torch
{imports}
from normscope.runtime.memory import current_memory, peak_memory
folder, batch, context, steps, rank = sys.argv[1], *map(int, sys.argv[2:])
# Text that can be learned: a walk with a few thousand words that each have few successors.
generator = np.random.default_rng(0)
successors = generator.integers(50257, size=(50257, 4))
walk, word = np.empty((steps + 1) * batch * (context + 1), dtype=np.int64), 0
for place, way in enumerate(generator.integers(4, size=len(walk))):
    walk[place] = word = successors[word % 2000, way]
*rows, held_out = walk.reshape(steps + 1, batch, context + 1)
torch.manual_seed(0)
before = current_memory()
{setup}
times, losses = [], []
for number in range(steps):
    start = time.perf_counter()
    losses.append(step(number))
    times.append(time.perf_counter() - start)
peak = (peak_memory() - before) / 2**20
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
model.eval()
with torch.no_grad():
    losses.append(loss_of(torch.from_numpy(held_out[:, :-1].copy()), torch.from_numpy(held_out[:, 1:].copy())).item())
print(json.dumps([statistics.median(times[2:]), peak, losses, trained]))
"""

_PEFT = _TIMED.format(
    imports="from peft import LoraConfig, get_peft_model\nfrom transformers import GPT2LMHeadModel",
    setup="""
model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
targets = ["c_attn", "c_proj", "c_fc"]
config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, fan_in_fan_out=True, task_type="CAUSAL_LM")
model = get_peft_model(model, config).train()
weights = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
def loss_of(inputs, targets):
    return model(inputs, labels=targets, shift_labels=targets, use_cache=False).loss
def step(number):
    tokens = torch.from_numpy(rows[number])
    loss = loss_of(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
""",
)

_OURS = _TIMED.format(
    imports="""
from normscope.blocks.lora import add_lora
import numba  # imported when the first kernel runs
from normscope.interop.checkpoint import build_model
from normscope.interop.huggingface.read import read_huggingface
from normscope.runtime.memory import keep_freed_memory
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer
""",
    setup="""
keep_freed_memory()
model = build_model(read_huggingface(folder))
add_lora(model, rank)
class Same:
    def batch(self, number):
        return np.ascontiguousarray(rows[number][:, :-1]), np.ascontiguousarray(rows[number][:, 1:])
settings = {"optimizer": "adamw", "matrix_lr": 1e-3, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "schedule": "constant"}
trainer = Trainer(model, TrainConfig(steps=steps, batch=batch, **settings), Same())
def loss_of(inputs, targets):
    return model.loss(inputs, targets)
def step(number):
    return trainer.step().loss
""",
)


@dataclass(frozen=True)
class Options:
    """Compare a finetuning step with peft's."""

    batch: int = 4
    context: int = 256
    steps: int = 12
    """Steps per turn."""
    rank: int = 8
    depth: int = 12
    turns: int = 3


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ask(_MAKE, folder, str(options.depth))
        settings = [folder, *(str(n) for n in (options.batch, options.context, options.steps, options.rank))]
        found = [(ask(_PEFT, *settings), ask(_OURS, *settings)) for _ in range(options.turns)]
    table = Table(
        title=f"LoRA of rank {options.rank}, batch {options.batch} x {options.context}, {options.turns} turns"
    )
    for heading in ("", "s per step", "peak MB", "first loss", "last loss", "validation loss", "trained"):
        table.add_column(heading, justify="right")
    rows = []
    for name, results in zip(("peft", "normscope"), zip(*found, strict=True), strict=True):
        seconds, memory = (statistics.median(result[i] for result in results) for i in (0, 1))
        rows.append((seconds, memory))
        _, _, losses, trained = results[0]
        shown = [f"{losses[i]:.3f}" for i in (0, -2, -1)]
        table.add_row(name, f"{seconds:.2f}", f"{memory:,.0f}", *shown, f"{trained:,}")
    (peft_seconds, peft_memory), (seconds, memory) = rows
    table.add_row("ratio", f"{seconds / peft_seconds:.2f}", f"{memory / peft_memory:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
