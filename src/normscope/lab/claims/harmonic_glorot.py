"""Glorot's variance: the harmonic mean of what either direction wants, and so what neither gets."""

import statistics
from collections.abc import Callable, Mapping

import torch

from normscope.blocks.initialization import GLOROT_CORRECTED
from normscope.blocks.linear import Linear
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""Of the width that comes out to the width that goes in."""
THEORY: Mapping[str, Callable[[float], float]] = {
    "forward": lambda ratio: 2 / (1 + ratio),
    "backward": lambda ratio: 2 * ratio / (1 + ratio),
    "pair": lambda ratio: 4 * ratio / (1 + ratio) ** 2,
}
"""What a layer, or a layer and one back, does to the variance."""
ROUNDING = 1e-12
"""Of numbers with sixteen digits."""
TOLERANCE = 0.05
"""Of a measured factor: what chance does to a layer of many thousand weights is about a hundredth."""
CLEARLY_OFF = 0.2
"""A layer that is off by this leaves a tenth of the variance after ten of its kind, or has made it six times as large.
Theory says (r - 1)/(r + 1) where one width is r times the other: a third for twice as wide."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {"layer": {"narrow": 240, "samples": budget.pick(quick=512, full=2048)}}


def measure(settings: Settings, seed: int) -> Metrics:
    """Layers of all ratios: their variances forward and backward, and of a layer up and another back down."""
    torch.manual_seed(seed)
    narrow, samples = settings["narrow"], settings["samples"]
    forward, backward, pair, errors = [], [], [], []
    for ratio in RATIOS:
        d_in, d_out = round(narrow * max(1, 1 / ratio)), round(narrow * max(1, ratio))
        errors.append(
            GLOROT_CORRECTED.std("input", d_in, d_out, 1) ** 2 / statistics.harmonic_mean([1 / d_in, 1 / d_out]) - 1
        )
        there, back = (
            Linear(*shape, bias=False, init=GLOROT_CORRECTED).requires_grad_(False)
            for shape in ((d_in, d_out), (d_out, d_in))
        )
        x = torch.randn(samples, d_in, requires_grad=True)
        y = there(x)
        gradient = torch.randn_like(y)
        y.backward(gradient)
        assert x.grad is not None
        forward.append((ratio, _size(y) / _size(x)))
        backward.append((ratio, _size(x.grad) / _size(gradient)))
        pair.append((ratio, _size(back(y)) / _size(x)))
    return {
        "harmonic_error": max(map(abs, errors)),
        "forward": forward,
        "backward": backward,
        "pair": pair,
    }


def _size(x: torch.Tensor) -> float:
    return x.detach().square().mean().item()


def questions(budget: Budget) -> list[Question]:
    def off_theory(runs: BySeed) -> float:
        return max(
            float(abs(got / theory(ratio) - 1)) for way, theory in THEORY.items() for ratio, got in runs["layer"][way]
        )

    def changes(runs: BySeed, *, square: bool) -> list[float]:
        """How far from one the factors are, in both directions, of layers with equal widths or of all others."""
        both = [*runs["layer"]["forward"], *runs["layer"]["backward"]]
        return [abs(factor - 1) for ratio, factor in both if (ratio == 1) is square]

    def harmonic(runs: BySeed) -> float:
        return float(runs["layer"]["harmonic_error"])

    identity = "2/(d_in + d_out) is the harmonic mean of 1/d_in and 1/d_out, at every ratio of widths"
    theory = f"forward, backward and over a pair, the variance's factor is within {TOLERANCE:.0%} of theory"
    equal = f"equal widths: both directions keep their variance to within {TOLERANCE:.0%}"
    unequal = f"unequal widths: both directions are off by more than {CLEARLY_OFF:.0%}, at every ratio"
    return [
        Question(identity, harmonic, ROUNDING, "below", every_seed=True),
        Question(theory, off_theory, TOLERANCE, "below", every_seed=True),
        Question(equal, lambda runs: max(changes(runs, square=True)), TOLERANCE, "below", every_seed=True),
        Question(unequal, lambda runs: min(changes(runs, square=False)), CLEARLY_OFF, "above", every_seed=True),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    ratios = [2 ** (i / 8) for i in range(-24, 25)]

    def both(label: str, way: str, colour: str) -> list[ChartLine]:
        return [
            ChartLine(label, runs.curve("layer", way), colour, connected=False),
            ChartLine(f"{label}, theory", [(ratio, THEORY[way](ratio)) for ratio in ratios], colour, dashed=True),
        ]

    kept = [("kept", 1.0)]
    x_label, y_label = "width out / width in", "variance after / before"
    lines = both("forward", "forward", "a") + both("backward", "backward", "b")
    pair = both("up and down", "pair", "c")
    return [
        Chart(
            "What one layer does to the variance",
            x_label,
            y_label,
            lines,
            reference_lines=kept,
            log_x=True,
            y_from_zero=True,
        ),
        Chart("A layer and one back", x_label, y_label, pair, reference_lines=kept, log_x=True, y_from_zero=True),
    ]


CLAIM = Claim(
    number=2,
    name="harmonic-glorot",
    kind="exact",
    statement=(
        "Glorot's variance 2/(d_in + d_out) is the harmonic mean of 1/d_in and 1/d_out; where the widths differ, it "
        "keeps the variance neither forward nor backward."
    ),
    source=(
        "Notes on initialization; Glorot and Bengio 2010, “Understanding the difficulty of training deep feedforward "
        "neural networks”."
    ),
    design=(
        "normscope's Linear, cut at three sigma and corrected for it, with one width one to eight times "
        "the other: a random signal forward, a random gradient backward, and a signal through a layer and one back."
    ),
    rule=(
        "Supported if, for every seed and ratio, the identity holds to rounding, the measured factors are theory's, "
        f"and only equal widths keep the variance: all others are off by more than {CLEARLY_OFF:.0%} both ways."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "The compromise is exact only for square layers. One that widens fourfold, as an MLP's first does, shrinks "
            "the signal and enlarges the gradient, and the one back does the opposite; but the two do not cancel: the "
            "pair shrinks both, by 4 r/(1 + r)², which is 0.64 for fourfold. Without a norm or a residual a stack of "
            "such pairs fades. A variance of 1/sqrt(d_in d_out), the geometric mean, would cancel over the pair."
        ),
        "contradicted": "normscope's Glorot does not do what its formula says; do not rely on it.",
        "inconclusive": "The layers are too small to tell.",
    },
)
