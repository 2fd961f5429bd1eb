"""Glorot's variance is the harmonic mean of what the forward and the backward pass need, so neither gets it."""

import statistics
from collections.abc import Callable, Mapping

import torch

from normscope.blocks.initialization import GLOROT_CORRECTED
from normscope.blocks.linear import Linear
from normscope.lab import toolkit as lab

RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""Output width divided by input width."""
THEORY: Mapping[str, Callable[[float], float]] = {
    "forward": lambda ratio: 2 / (1 + ratio),
    "backward": lambda ratio: 2 * ratio / (1 + ratio),
    "pair": lambda ratio: 4 * ratio / (1 + ratio) ** 2,
}
"""The factor on the variance of one layer, or of a layer followed by one with the reverse shape."""
ROUNDING = 1e-12
"""Relative, in float64."""
TOLERANCE = 0.05
"""Relative error of a measured factor; sampling noise of a layer with many thousand weights is about 1%."""
CLEARLY_OFF = 0.2
"""Ten layers that are off by this much leave a tenth of the variance, or multiply it by six. Theory says
(r - 1)/(r + 1) for widths of ratio r: a third for twice as wide."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {"layer": {"narrow": 240, "samples": budget.pick(quick=512, full=2048)}}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Measure the variance factor of layers of all ratios: forward, backward, and over a pair of layers."""
    torch.manual_seed(seed)
    narrow, samples = settings["narrow"], settings["samples"]
    forward, backward, pair, errors = [], [], [], []
    for ratio in RATIOS:
        d_in, d_out = round(narrow * max(1, 1 / ratio)), round(narrow * max(1, ratio))
        variance = GLOROT_CORRECTED.std("input", d_in, d_out, 1) ** 2
        errors.append(variance / statistics.harmonic_mean([1 / d_in, 1 / d_out]) - 1)
        up, down = (
            Linear(*shape, bias=False, init=GLOROT_CORRECTED).requires_grad_(False)
            for shape in ((d_in, d_out), (d_out, d_in))
        )
        x = torch.randn(samples, d_in, requires_grad=True)
        y = up(x)
        gradient = torch.randn_like(y)
        y.backward(gradient)
        assert x.grad is not None
        forward.append((ratio, _mean_square(y) / _mean_square(x)))
        backward.append((ratio, _mean_square(x.grad) / _mean_square(gradient)))
        pair.append((ratio, _mean_square(down(y)) / _mean_square(x)))
    return {"harmonic_error": max(map(abs, errors)), "forward": forward, "backward": backward, "pair": pair}


def _mean_square(x: torch.Tensor) -> float:
    return x.detach().square().mean().item()


def questions(budget: lab.Budget) -> list[lab.Question]:
    def theory_error(layer: lab.Metrics) -> float:
        return max(float(abs(got / theory(ratio) - 1)) for way, theory in THEORY.items() for ratio, got in layer[way])

    def changes(layer: lab.Metrics, *, square: bool) -> list[float]:
        """Distances of the factors from 1, in both directions, for equal widths or for all others."""
        both = [*layer["forward"], *layer["backward"]]
        return [abs(factor - 1) for ratio, factor in both if (ratio == 1) is square]

    mean = "2/(d_in + d_out) is the harmonic mean of 1/d_in and 1/d_out, at every ratio of widths"
    as_predicted = f"forward, backward and over a pair, the variance factor is within {TOLERANCE:.0%} of theory"
    equal = f"equal widths: both directions preserve the variance to within {TOLERANCE:.0%}"
    unequal = f"unequal widths: both directions are off by more than {CLEARLY_OFF:.0%}, at every ratio"
    return [
        lab.largest(mean, "harmonic_error", ROUNDING),
        lab.largest(as_predicted, theory_error, TOLERANCE),
        lab.largest(equal, lambda layer: max(changes(layer, square=True)), TOLERANCE),
        lab.smallest(unequal, lambda layer: min(changes(layer, square=False)), CLEARLY_OFF),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    ratios = [2 ** (i / 8) for i in range(-24, 25)]

    def chart(title: str, ways: list[str], colors: str) -> lab.Chart:
        theory = {way: [(ratio, THEORY[way](ratio)) for ratio in ratios] for way in ways}
        drawn = lab.against_theory({way: (runs.curve("layer", way), theory[way]) for way in ways}, colors)
        x_label, y_label, preserved = "output width / input width", "variance after / before", [("preserved", 1.0)]
        return lab.Chart(title, x_label, y_label, drawn, reference_lines=preserved, log_x=True, y_from_zero=True)

    one_layer = chart("Variance factor of one layer", ["forward", "backward"], "ab")
    return [one_layer, chart("Up and back down", ["pair"], "c")]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
