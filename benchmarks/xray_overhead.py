"""What does the x-ray cost during a step, and afterwards?

.venv/bin/python benchmarks/xray_overhead.py

A step is forward, loss, backward and AdamW, on models of 6 blocks, width 384: normscope's GPT and transformers' GPT-2.
Plain and x-rayed steps are interleaved. An x-rayed step makes a record and computes the findings; the last column is a
plain step after an x-ray, relative to a model that was never x-rayed.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import normscope
from normscope import GPT, gpt2
from normscope.diagnostics.findings import find

BATCH, CONTEXT, VOCABULARY = 8, 256, 65
REPEATS = 9

Loss = Callable[[Tensor], Tensor]


def ours() -> tuple[nn.Module, Loss]:
    model = GPT(gpt2(vocab_size=VOCABULARY, context=CONTEXT, depth=6, width=384, heads=6))
    return model, lambda tokens: model.loss(tokens, tokens)


def of_transformers() -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=384, n_layer=6, n_head=6, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]

    def loss(tokens: Tensor) -> Tensor:
        found: Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return model, loss


def _step(loss: Loss, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    loss(tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def measure(make: Callable[[], tuple[nn.Module, Loss]]) -> tuple[float, float, float, float]:
    """Median times of a plain step, an x-rayed step, computing the findings, and a step after the x-ray."""
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT))
    made = [make(), make()]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4) for model, _ in made]
    tasks = [partial(_step, loss, optimizer, tokens) for (_, loss), optimizer in zip(made, optimizers, strict=True)]
    found = []

    def watched() -> None:
        with normscope.xray(made[1][0]) as x:
            tasks[1]()
        found.append(x.record)

    times: list[list[float]] = [[], [], [], []]
    turns: list[Callable[[], object]] = [tasks[0], watched, lambda: find(found[-1]), tasks[1]]
    for task in [*turns, *turns]:
        task()
    for _ in range(REPEATS):
        for into, task in zip(times, turns, strict=True):
            into.append(_seconds(task))
    plain, looked, finding, after = (statistics.median(each) for each in times)
    return plain, looked, finding, after


def table() -> Table:
    title = f"a step of 6 blocks of 384, {BATCH} x {CONTEXT} tokens, {torch.get_num_threads()} threads"
    result = Table(
        "model",
        "plain, ms",
        "with x-ray, ms",
        "ratio",
        "findings, ms",
        "after x-ray, ratio",
        title=title,
        box=None,
    )
    cases = {"normscope, gpt2": ours, "transformers, GPT-2": of_transformers}
    for name, make in track(list(cases.items()), "x-ray", console=Console(stderr=True), transient=True):
        plain, looked, finding, after = measure(make)
        cells = [f"{plain * 1e3:.0f}", f"{looked * 1e3:.0f}", f"{looked / plain:.2f} x", f"{finding * 1e3:.0f}"]
        result.add_row(name, *cells, f"{after / plain:.2f} x")
    return result


if __name__ == "__main__":
    Console(width=120).print(table())
