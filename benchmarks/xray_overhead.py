"""What does the x-ray cost during a step, and afterwards?

.venv/bin/python benchmarks/xray_overhead.py [MODEL ...]

A step is forward, loss, backward and AdamW. Times are CPU times with one thread: threads that wait for work count as
busy. The x-ray measures all of the first 20 steps, and then every seventh.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import normscope
from normscope import GPT, gpt2
from normscope.diagnostics.findings import find

VOCABULARY = 65
WARM_UP, FIRST, LATER = 3, 10, 28
"""Steps before measuring, and steps that are measured: of the first 20, and of those after them."""

Loss = Callable[[], Tensor]


def mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    images, labels = torch.randn(256, 64), torch.randint(10, (256,))
    return model, lambda: cross_entropy(model(images), labels)


def cnn() -> tuple[nn.Module, Loss]:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    model = nn.Sequential(*block(3, 16), *block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    return model, lambda: cross_entropy(model(images), labels)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(VOCABULARY, 32), nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


def lstm() -> tuple[nn.Module, Loss]:
    model, tokens = Recurrent(), torch.randint(VOCABULARY, (16, 40))
    return model, lambda: cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def encoder() -> tuple[nn.Module, Loss]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 64), inner, nn.Linear(64, VOCABULARY))
    tokens = torch.randint(VOCABULARY, (16, 32))
    return model, lambda: cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def gpt(depth: int, width: int, batch: int, context: int) -> tuple[nn.Module, Loss]:
    model = GPT(gpt2(vocab_size=VOCABULARY, context=context, depth=depth, width=width, heads=4))
    tokens = torch.randint(VOCABULARY, (batch, context))
    return model, lambda: model.loss(tokens, tokens)


def transformers_gpt2() -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=6, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    tokens = torch.randint(VOCABULARY, (8, 128))
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


CASES: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
    "encoder": encoder,
    "gpt-4x128": lambda: gpt(4, 128, 8, 64),
    "gpt-6x256": lambda: gpt(6, 256, 8, 128),
    "transformers-gpt2-6x256": transformers_gpt2,
}


def measure(make: Callable[[], tuple[nn.Module, Loss]]) -> tuple[float, float, float, float, float]:
    """Seconds of a plain step, of the first and of later steps of an x-ray, of its findings, and of a step after it."""
    torch.manual_seed(0)
    model, loss = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def seconds(task: Callable[[], object], repeats: int) -> list[float]:
        times = []
        for _ in range(repeats):
            start = time.process_time()
            task()
            times.append(time.process_time() - start)
        return times

    seconds(step, WARM_UP)
    plain = statistics.median(seconds(step, FIRST))
    with normscope.xray(model):
        seconds(step, WARM_UP)  # compiles kernels
    with normscope.xray(model) as x:
        seconds(step, 20 - FIRST)
        first = statistics.median(seconds(step, FIRST))
        later = statistics.mean(seconds(step, LATER))
    finding = seconds(lambda: find(x.record), 1)[0]
    return plain, first, later, finding, statistics.median(seconds(step, FIRST))


def table(names: Sequence[str] = tuple(CASES)) -> Table:
    head = ("plain, ms", "first steps", "later steps", "findings, ms", "after x-ray")
    result = Table("model", *head, title="CPU time of a step, relative to a plain one", box=None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in track(names, "x-ray", console=Console(stderr=True), transient=True):
        plain, first, later, finding, after = measure(CASES[name])
        ratios = [f"{value / plain:.2f} x" for value in (first, later, after)]
        result.add_row(name, f"{plain * 1e3:.1f}", *ratios[:2], f"{finding * 1e3:.0f}", ratios[2])
    torch.set_num_threads(threads)
    return result


if __name__ == "__main__":
    Console(width=120).print(table(sys.argv[1:] or tuple(CASES)))
