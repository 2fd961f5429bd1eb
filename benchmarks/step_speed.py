"""How much faster is a training step with the kernels, and where does its time go?

.venv/bin/python benchmarks/step_speed.py

A step is forward, loss and backward of a preset, in float32 on all cores. The baseline is the same model in plain
torch: torch.nn's norms, and torch's functions for everything else.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import normscope
from normscope.ops.kernel_mode import reference_kernels
from normscope.runtime.memory import keep_freed_memory
from timing import medians

SIZES = (
    {"depth": 4, "width": 128, "heads": 4, "context": 64, "vocab_size": 65},
    {"depth": 6, "width": 384, "heads": 6, "context": 256, "vocab_size": 4096},
)
BATCH = {128: 12, 384: 8}
PRESETS = {"gpt2": normscope.gpt2, "nanochat": normscope.nanochat, "llama": normscope.llama}

# The part an operation belongs to, by substrings of its name; the first match counts.
PARTS = {
    "matmuls": ("mm", "linear", "matmul"),
    "attention": ("attention", "softmax_", "attend"),
    "positions": ("rotary", "Rotary"),  # before the norms: rms_norm_rotary is one operation
    "norms": ("norm", "rsqrt"),
    "activation": ("gelu", "silu", "relu", "activation"),
    "loss": ("entropy", "log_softmax", "nll", "Entropy", "tanh"),
}


class TorchNorm(nn.Module):
    """torch's norm over the last axis, with the parameters of a normscope norm."""

    def __init__(self, norm: normscope.Norm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.statistic = norm.weight, norm.bias, norm.eps, norm.statistic

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.statistic.centers:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps or 1e-5)


def in_plain_torch(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, normscope.Norm):
                setattr(module, name, TorchNorm(child))
    return model


def step(model: normscope.GPT, tokens: Tensor) -> Callable[[], object]:
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(model.loss(tokens[:, :-1], tokens[:, 1:]), parameters)


def without_kernels(work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with reference_kernels():
            return work()

    return run


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Fraction of the step time per part."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(5):
            work()
    times: dict[str, float] = dict.fromkeys([*PARTS, "other"], 0.0)
    for event in found.key_averages():
        part = next((part for part, names in PARTS.items() if any(name in event.key for name in names)), "other")
        times[part] += event.self_cpu_time_total
    return {part: time / sum(times.values()) for part, time in times.items()}


def answer(preset: str, sizes: dict[str, int]) -> list[str]:
    torch.manual_seed(0)
    model = normscope.GPT(PRESETS[preset](**sizes))
    torch.manual_seed(0)
    plain = in_plain_torch(normscope.GPT(PRESETS[preset](**sizes)))
    assert isinstance(plain, normscope.GPT)
    tokens = torch.randint(sizes["vocab_size"], (BATCH[sizes["width"]], sizes["context"] + 1))
    with reference_kernels():
        expected = plain.loss(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:]), expected)
    ours = step(model, tokens)
    mine, theirs = medians([ours, without_kernels(step(plain, tokens))], least=0.1)
    parts = shares(ours)
    size = f"{sizes['depth']} blocks of {sizes['width']}"
    return [preset, size, f"{theirs / mine:.2f} x", *(f"{share:.0%}" for share in parts.values())]


def table() -> Table:
    title = f"a training step with kernels vs. plain torch, {torch.get_num_threads()} threads"
    found = Table("preset", "size", "speedup", *PARTS, "other", title=title, box=None)
    cases = [(preset, sizes) for sizes in SIZES for preset in PRESETS]
    for preset, sizes in track(cases, "steps", console=Console(stderr=True), transient=True):
        found.add_row(*answer(preset, sizes))
    return found


if __name__ == "__main__":
    keep_freed_memory()
    Console(width=120).print(table())
