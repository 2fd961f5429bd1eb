"""The variance of the signal through a stack of linear layers, forward and backward."""

from collections.abc import Mapping

import torch

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

SIZES = {"too small": 0.5, "right": 1.0, "too large": 2.0}
"""d Var(w), what theory says that each layer multiplies the variance by."""
WIDTHS = (256, 512)
"""Of what goes in and comes out of a pair of layers, so that forward and backward differ."""
TOLERANCE = 0.05
"""Of the factor a layer. It is measured on thousands of numbers; what chance does to it is about a hundredth."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    layers = budget.pick(quick=16, full=32)
    return {name: {"gain": gain, "layers": layers, "samples": 512} for name, gain in SIZES.items()}


def measure(settings: Settings, seed: int) -> Metrics:
    """Random signals through linear layers whose widths take turns, and random gradients back through them."""
    # Each scale draws its own weights: the same ones, only scaled, would be one test that is passed three times.
    torch.manual_seed(seed + round(1_000_000 * settings["gain"]))
    layers, samples = settings["layers"], settings["samples"]
    narrow, wide = WIDTHS
    shapes = [(narrow, wide) if i % 2 == 0 else (wide, narrow) for i in range(layers)]
    # One variance for all weights, right for the geometric mean of both widths.
    variance = settings["gain"] / (narrow * wide) ** 0.5
    weights = [torch.randn(d_in, d_out, dtype=torch.float64) * variance**0.5 for d_in, d_out in shapes]
    x = torch.randn(samples, narrow, dtype=torch.float64)
    forward = [x.var().item()]
    for weight in weights:
        x = x @ weight
        forward.append(x.var().item())
    gradient = torch.randn(samples, shapes[-1][1], dtype=torch.float64)
    backward = [gradient.var().item()]
    for weight in reversed(weights):
        gradient = gradient @ weight.T
        backward.append(gradient.var().item())
    expected_forward, expected_backward = [forward[0]], [backward[0]]
    for d_in, _ in shapes:
        expected_forward.append(expected_forward[-1] * d_in * variance)
    for _, d_out in reversed(shapes):
        expected_backward.append(expected_backward[-1] * d_out * variance)
    return {
        "forward": list(enumerate(forward)),
        "backward": list(enumerate(backward)),
        "expected_forward": list(enumerate(expected_forward)),
        "expected_backward": list(enumerate(expected_backward)),
        "worst": max(
            abs((got / want) ** (1 / layer) - 1)
            for measured, theory in ((forward, expected_forward), (backward, expected_backward))
            for layer, (got, want) in enumerate(zip(measured, theory, strict=True))
            if layer
        ),
    }


def questions(budget: Budget) -> list[Question]:
    def off(name: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[name]["worst"])

        text = f"weights {name}: the factor a layer is within {TOLERANCE:.0%} of d Var(w), both ways, at every depth"
        return Question(text, effect, threshold=TOLERANCE, side="below", every_seed=True)

    return [off(name) for name in SIZES]


def charts(runs: VariantRuns) -> list[Chart]:
    def chart(way: str, label: str) -> Chart:
        lines = []
        for name, colour in zip(SIZES, "abc", strict=True):
            lines.append(ChartLine(f"{name}", runs.curve(name, way), colour, connected=False))
            lines.append(ChartLine(f"{name}, theory", runs.curve(name, f"expected_{way}"), colour, dashed=True))
        return Chart(f"Variance, {way}", label, "variance", lines, log_y=True)

    return [chart("forward", "layer"), chart("backward", "layers from the end")]


CLAIM = Claim(
    number=1,
    name="variance-by-depth",
    kind="exact",
    statement=(
        "Forward, each linear layer multiplies the signal's variance by d_in Var(w); backward, the gradient's by "
        "d_out Var(w)."
    ),
    source=(
        "Notes on initialization; Glorot and Bengio 2010, “Understanding the difficulty of training deep feedforward "
        "neural networks”."
    ),
    design=(
        "Random signals through a stack of linear layers whose widths alternate between 256 and 512, and random "
        "gradients back through it, in float64, with weights too small, right and too large, each drawn anew."
    ),
    rule=f"Supported if, for every seed and at every depth, the measured factor a layer is within {TOLERANCE:.0%}.",
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "A factor of 0.5 a layer leaves 1.5e-5 of the variance after sixteen layers, and one of 2 makes it 65,536 "
            "times as large, in either direction: the scale of the first weights has to be right, or a norm has to "
            "make up for it."
        ),
        "contradicted": "The product rule does not hold as stated; do not derive an initialization from it.",
        "inconclusive": "The widths are too small to tell.",
    },
    revised="a part of its design",
)
