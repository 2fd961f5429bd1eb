"""What norms cost: torch's LayerNorm against one by hand, and RMSNorm against LayerNorm."""

import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.norm import LayerNorm, RMSNorm
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import interval_dots
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

SHAPES = {"1 x 768": (1, 768), "512 x 48": (512, 48), "2048 x 256": (2048, 256), "2048 x 768": (2048, 768)}
"""Tokens and features: writing text, a model of the lab, and two sizes that people train on a CPU."""
ENOUGH, MOST_CALLS = 400_000, 100
"""Numbers that one stopwatch reading should cover, and how many calls it may take for that."""
WARM_UP = 3
"""Rounds of everything that do not count: at first a process has to ask the system for every piece of memory."""
ROOM = 24
"""Tensors for which there is room."""
RATIOS = {
    "by hand": ("hand", "torch layer"),
    "torch's": ("torch rms", "torch layer"),
    "normscope's": ("normscope rms", "normscope layer"),
}
"""Whose time over whose."""
Norm = Callable[[Tensor], Tensor]
MODES = {"forward": "forward alone", "training": "forward and backward"}


def variants(budget: Budget) -> Mapping[str, Settings]:
    rounds = budget.pick(quick=15, full=150)
    return {name: {"tokens": tokens, "width": width, "rounds": rounds} for name, (tokens, width) in SHAPES.items()}


def measure(settings: Settings, seed: int) -> Metrics:
    """The norms in turn, round after round; a ratio is the median of those within each round."""
    torch.manual_seed(seed)
    tokens, width = settings["tokens"], settings["width"]
    x = torch.randn(tokens, width, requires_grad=True)
    back = torch.randn(tokens, width)
    weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)
    own_layer, own_rms = LayerNorm(width), RMSNorm(width)
    norms: dict[str, tuple[Norm, list[Tensor]]] = {
        "hand": (lambda x: _by_hand(x, weight, bias), [weight, bias]),
        "torch layer": (lambda x: F.layer_norm(x, (width,), weight, bias), [weight, bias]),
        "torch rms": (lambda x: F.rms_norm(x, (width,), weight), [weight]),
        "normscope layer": (own_layer, list(own_layer.parameters())),
        "normscope rms": (own_rms, list(own_rms.parameters())),
    }
    calls = min(MOST_CALLS, max(1, ENOUGH // (tokens * width)))
    gradients = {"forward": None, "training": back}
    roof: list[Tensor] = []
    for _ in range(WARM_UP):
        for norm, weights in norms.values():
            for gradient in gradients.values():
                _seconds(norm, weights, x, gradient, calls)
        # What lies at the end of a process's memory goes back to the system whenever it is free, and costs its owner
        # twice the time: chance, which would decide. So something else lies there, with room below, as in any model.
        room = [torch.empty_like(x) for _ in range(ROOM)]
        roof.append(room.pop())
        del room
    metrics = {}
    for mode, gradient in gradients.items():
        times: dict[str, list[float]] = {name: [] for name in norms}
        names = list(norms)
        for _ in range(settings["rounds"]):
            for name in names:
                times[name].append(_seconds(*norms[name], x, gradient, calls))
            names = names[1:] + names[:1]  # nobody is always the first
        for label, (one, other) in RATIOS.items():
            ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
            metrics[f"{label} {mode}"] = statistics.median(ratios)
    return metrics


def _by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def _seconds(norm: Norm, weights: list[Tensor], x: Tensor, back: Tensor | None, calls: int) -> float:
    """Of the processor, so that what else runs on the machine does not count."""
    start = time.process_time()
    if back is None:
        with torch.no_grad():
            for _ in range(calls):
                norm(x)
    else:
        for _ in range(calls):
            torch.autograd.grad(norm(x), [x, *weights], back)
    return time.process_time() - start


def questions(budget: Budget) -> list[Question]:
    def usual(ratio: str, mode: str) -> Callable[[BySeed], float]:
        """The geometric mean over the shapes, in which twice and half the time cancel."""
        return lambda runs: math.exp(statistics.fmean(math.log(runs[shape][f"{ratio} {mode}"]) for shape in SHAPES))

    asked = []
    for mode, words in MODES.items():
        text = f"{words}: mean and variance by hand take longer than F.layer_norm"
        asked.append(Question(text, usual("by hand", mode), threshold=1.0, side="above", unit="times"))
        for whose in ("torch's", "normscope's"):
            text = f"{words}: {whose} RMSNorm takes less time than {whose} LayerNorm"
            asked.append(Question(text, usual(whose, mode), threshold=1.0, side="below", unit="times"))
    return asked


def charts(runs: VariantRuns) -> list[Chart]:
    def threshold(label: str, metric: str, colour: str, shift: float) -> ChartLine:
        found = [(at + shift, runs.interval(shape, metric)) for at, shape in enumerate(SHAPES)]
        return interval_dots(label, found, colour)

    def chart(title: str, *lines: ChartLine) -> Chart:
        return Chart(
            title,
            "tokens x features",
            "ratio of times",
            lines,
            reference_lines=[("equal", 1.0)],
            categories=list(SHAPES),
        )

    def rms_chart(mode: str) -> Chart:
        lines = (
            threshold("torch's", f"torch's {mode}", "a", -0.06),
            threshold("normscope's", f"normscope's {mode}", "b", 0.06),
        )
        return chart(f"RMSNorm's time over LayerNorm's, {MODES[mode]}", *lines)

    hand = (
        threshold(words, f"by hand {mode}", "ab"[i], 0.12 * i - 0.06) for i, (mode, words) in enumerate(MODES.items())
    )
    return [rms_chart("forward"), rms_chart("training"), chart("By hand over F.layer_norm", *hand)]


CLAIM = Claim(
    number=14,
    name="norm-speed",
    kind="measured",
    statement="F.layer_norm is faster than mean and variance by hand, and RMSNorm is cheaper than LayerNorm.",
    source=(
        "Notes on LayerNorm and on normalization; Zhang and Sennrich 2019, “Root Mean Square Layer Normalization”."
    ),
    design=(
        "Processor time of one core, float32, four shapes from a single token to 2048 x 768: the norms take turns, and "
        "each ratio is the median over the rounds. LayerNorm has a gain and a bias, RMSNorm a gain. torch's two are "
        "its functions, normscope's its layers, so each is compared with its own kind."
    ),
    rule=(
        "Supported if, forward alone and with the backward pass, the interval of the mean ratio over the shapes "
        "(geometric) is above 1 for by hand over F.layer_norm, and below 1 for RMSNorm over LayerNorm, torch's and "
        "normscope's."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Never write a norm by hand, and take RMSNorm for its speed if the loss allows it. How much it saves "
            "depends on the shape: see the picture."
        ),
        "contradicted": (
            "That there is less to compute does not make a norm faster: on a CPU the memory that is read and written "
            "counts, and how well the kernel was written. Measure the library that you use, at the shape that you use, "
            "before you choose a norm for its speed."
        ),
        "inconclusive": "The times differ by less than they scatter; do not choose by them.",
    },
)
