"""How much faster does a Hugging Face model train after `normscope.fuse(model)`?

.venv/bin/python benchmarks/fuse_speed.py

A step is forward, loss and backward without the optimizer, in float32 on all cores. The original and the fused model
are interleaved, so that load on the machine affects both; each result is a median.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import normscope
from normscope.runtime.memory import keep_freed_memory

DEPTH, WIDTH, HEADS, VOCABULARY, BATCH, CONTEXT = 6, 384, 6, 4096, 8, 256
REPEATS = 9


def gpt2() -> Any:
    return GPT2LMHeadModel(  # type: ignore[no-untyped-call]
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=DEPTH,
            n_head=HEADS,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def llama() -> Any:
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            hidden_size=WIDTH,
            intermediate_size=8 * WIDTH // 3,
            num_hidden_layers=DEPTH,
            num_attention_heads=HEADS,
            use_cache=False,
        )
    )


def seconds(model: Any, tokens: Tensor) -> float:
    model.zero_grad()
    start = time.perf_counter()
    model(input_ids=tokens, labels=tokens).loss.backward()
    return time.perf_counter() - start


def medians(make: Callable[[], Any]) -> tuple[float, float, int]:
    """Median time per step before and after fusing, and the number of replaced modules."""
    torch.manual_seed(0)
    model, tokens = make(), torch.randint(VOCABULARY, (BATCH, CONTEXT))
    before, after, fused = [], [], 0
    for turn in range(REPEATS + 2):
        was = seconds(model, tokens)
        with normscope.fuse(model) as report:
            now, fused = seconds(model, tokens), len(report.fused)
        if turn >= 2:
            before.append(was)
            after.append(now)
    return statistics.median(before), statistics.median(after), fused


def table() -> Table:
    title = f"forward, loss and backward, {BATCH} x {CONTEXT} tokens, {torch.get_num_threads()} threads"
    found = Table("model", "modules replaced", "speedup", title=title, box=None)
    for name, make in (("GPT-2", gpt2), ("Llama", llama)):
        before, after, fused = medians(make)
        found.add_row(name, str(fused), f"{before / after:.2f} x")
    return found


if __name__ == "__main__":
    keep_freed_memory()
    Console(width=120).print(table())
