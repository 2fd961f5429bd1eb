"""The variance of a signal through a stack of linear layers, forward and backward."""

import torch

from normscope.lab import toolkit as lab

GAINS = {"too small": 0.5, "right": 1.0, "too large": 2.0}
"""d Var(w): the factor by which theory says each layer multiplies the variance."""
WIDTHS = (256, 512)
"""Input and output width of a pair of layers; they differ so that forward and backward differ."""
TOLERANCE = 0.05
"""Relative error of the factor per layer. It is measured on thousands of values; sampling noise is about 1%."""


def variants(budget: lab.Budget) -> lab.Variants:
    layers = budget.pick(quick=16, full=32)
    return {name: {"gain": gain, "layers": layers, "samples": 512} for name, gain in GAINS.items()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Send random signals forward through layers of alternating width, and random gradients back."""
    # Each gain draws its own weights: scaling the same ones would repeat one test three times.
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


def questions(budget: lab.Budget) -> list[lab.Question]:
    error = f"the factor per layer is within {TOLERANCE:.0%} of d Var(w), forward and backward, at every depth"
    return [lab.largest(f"weights {name}: {error}", "worst", TOLERANCE, [name]) for name in GAINS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def chart(way: str, label: str) -> lab.Chart:
        lines: list[lab.ChartLine] = []
        for name, color in zip(GAINS, "abc", strict=True):
            lines += lab.dots_and_theory(name, runs.curve(name, way), runs.curve(name, f"expected_{way}"), color)
        return lab.Chart(f"Variance, {way}", label, "variance", lines, log_y=True)

    return [chart("forward", "layer"), chart("backward", "layers from the end")]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
