"""What norms cost: torch's fused LayerNorm against separate operations, and RMSNorm against LayerNorm."""

import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.norm import LayerNorm, RMSNorm
from normscope.lab import toolkit as lab
from normscope.lab.trials.measuring import median_ratio, times_in_turn

SHAPES = {"1 x 768": (1, 768), "512 x 48": (512, 48), "2048 x 256": (2048, 256), "2048 x 768": (2048, 768)}
"""Tokens x features: text generation, a model of the lab, and two sizes that are trained on CPUs."""
ENOUGH, MOST_CALLS = 400_000, 100
"""Values that one timing should cover, and the maximum number of calls for that."""
WARMUP = 3
"""Rounds that are discarded: at first a process requests every buffer from the operating system."""
RESERVED = 24
"""Buffers that are reserved below the top of the heap."""
RATIOS = {
    "plain code": ("plain", "torch layer"),
    "torch's": ("torch rms", "torch layer"),
    "normscope's": ("normscope rms", "normscope layer"),
}
"""Numerator and denominator."""
Norm = Callable[[Tensor], Tensor]
MODES = {"forward": "forward only", "training": "forward and backward"}


def variants(budget: lab.Budget) -> lab.Variants:
    rounds = budget.pick(quick=15, full=150)
    return {name: {"tokens": tokens, "width": width, "rounds": rounds} for name, (tokens, width) in SHAPES.items()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Time the norms in turn, round after round; a ratio is the median of the ratios within each round."""
    torch.manual_seed(seed)
    tokens, width = settings["tokens"], settings["width"]
    x = torch.randn(tokens, width, requires_grad=True)
    back = torch.randn(tokens, width)
    weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)
    own_layer, own_rms = LayerNorm(width), RMSNorm(width)
    norms: dict[str, tuple[Norm, list[Tensor]]] = {
        "plain": (lambda x: _layer_norm(x, weight, bias), [weight, bias]),
        "torch layer": (lambda x: F.layer_norm(x, (width,), weight, bias), [weight, bias]),
        "torch rms": (lambda x: F.rms_norm(x, (width,), weight), [weight]),
        "normscope layer": (own_layer, list(own_layer.parameters())),
        "normscope rms": (own_rms, list(own_rms.parameters())),
    }
    calls = min(MOST_CALLS, max(1, ENOUGH // (tokens * width)))
    gradients = {"forward": None, "training": back}
    top: list[Tensor] = []
    for _ in range(WARMUP):
        for norm, weights in norms.values():
            for gradient in gradients.values():
                _seconds(norm, weights, x, gradient, calls)
        # A buffer at the end of the heap goes back to the operating system whenever it is freed, which doubles its
        # cost at random. So another buffer occupies the end, with free space below it, as in any model.
        reserved = [torch.empty_like(x) for _ in range(RESERVED)]
        top.append(reserved.pop())
        del reserved
    metrics = {}
    for mode, gradient in gradients.items():
        runs = {name: partial(_seconds, *norms[name], x, gradient, calls) for name in norms}
        times = times_in_turn(runs, settings["rounds"])
        for label, (one, other) in RATIOS.items():
            metrics[f"{label} {mode}"] = median_ratio(times[one], times[other])
    return metrics


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def _seconds(norm: Norm, weights: list[Tensor], x: Tensor, back: Tensor | None, calls: int) -> float:
    """CPU time, so that other processes do not count."""
    start = time.process_time()
    if back is None:
        with torch.no_grad():
            for _ in range(calls):
                norm(x)
    else:
        for _ in range(calls):
            torch.autograd.grad(norm(x), [x, *weights], back)
    return time.process_time() - start


def questions(budget: lab.Budget) -> list[lab.Question]:
    def mean_ratio(ratio: str, mode: str) -> Callable[[lab.BySeed], float]:
        """The geometric mean over the shapes, in which a factor of two and a half cancel."""
        return lambda runs: math.exp(statistics.fmean(math.log(runs[shape][f"{ratio} {mode}"]) for shape in SHAPES))

    asked = []
    for mode, words in MODES.items():
        text = f"{words}: mean and variance in plain code take longer than F.layer_norm"
        asked.append(lab.Question(text, mean_ratio("plain code", mode), 1.0, "above", unit="times"))
        for whose in ("torch's", "normscope's"):
            text = f"{words}: {whose} RMSNorm takes less time than {whose} LayerNorm"
            asked.append(lab.Question(text, mean_ratio(whose, mode), 1.0, "below", unit="times"))
    return asked


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    named = {
        f"RMSNorm's time over LayerNorm's, {words}": {whose: f"{whose} {mode}" for whose in ("torch's", "normscope's")}
        for mode, words in MODES.items()
    }
    named["Plain code over F.layer_norm"] = {words: f"plain code {mode}" for mode, words in MODES.items()}
    charts = []
    for title, metrics in named.items():
        lines = lab.interval_lines({label: [runs.values(name, metrics[label]) for name in SHAPES] for label in metrics})
        charts.append(lab.Chart(title, "tokens x features", "ratio of times", lines, [("equal", 1.0)], [*SHAPES]))
    return charts


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
