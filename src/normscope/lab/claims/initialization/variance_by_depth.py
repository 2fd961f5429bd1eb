"""The variance of a signal through a stack of linear layers, forward and backward."""

from typing import Any

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
    metrics: dict[str, Any] = {"worst": 0.0}
    for way, chain in (("forward", weights), ("backward", [weight.T for weight in reversed(weights)])):
        x = torch.randn(samples, chain[0].shape[0], dtype=torch.float64)
        measured = expected = [x.var().item()]
        for weight in chain:
            x = x @ weight
            measured = [*measured, x.var().item()]
            expected = [*expected, expected[-1] * weight.shape[0] * variance]
        pairs = enumerate(zip(measured, expected, strict=True))
        errors = [abs((got / want) ** (1 / max(1, layer)) - 1) for layer, (got, want) in pairs]
        metrics["worst"] = max(metrics["worst"], *errors)
        metrics |= {way: list(enumerate(measured)), f"expected_{way}": list(enumerate(expected))}
    return metrics


def questions(budget: lab.Budget) -> list[lab.Question]:
    error = f"the factor per layer is within {TOLERANCE:.0%} of d Var(w), forward and backward, at every depth"
    return [lab.largest(f"weights {name}: {error}", "worst", TOLERANCE, [name]) for name in GAINS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def chart(way: str, label: str) -> lab.Chart:
        found = {name: (runs.curve(name, way), runs.curve(name, f"expected_{way}")) for name in GAINS}
        return lab.Chart(f"Variance, {way}", label, "variance", lab.against_theory(found), log_y=True)

    return [chart("forward", "layer"), chart("backward", "layers from the end")]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
