"""The mean of an MLP's hidden activations, by activation function, and what of it reaches the next norm."""

import math

import torch
from torch import Tensor

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.mlp import MLP
from normscope.blocks.norm import RMSNorm
from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import rms

PLAIN, GATED = ("relu", "gelu", "relu2"), ("swiglu", "geglu", "reglu")
NAMES = (*PLAIN, *GATED)
WIDTHS = (8, 16, 32, 64, 128)
WIDEST = WIDTHS[-1]
TOKENS = 512
NEAR_ZERO = 0.05
"""Of the hidden rms: centering would remove a thousandth of the energy."""
FAR = 0.3
"""Centering would remove a tenth of the energy."""
TOLERANCE = 0.03
"""Of mean over rms: a few times the sampling noise of this many units."""
RANDOM_MEAN = 1 / math.sqrt(WIDEST)
"""The mean of that many independent values of rms 1: what any token has."""
MAX_RANDOM_MEAN = 2 * RANDOM_MEAN
"""Exceeded about once in a thousand draws; even there centering removes only 3% of a token's energy."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {activation: {"activation": activation} for activation in NAMES}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Pass random tokens through RMSNorm into a newly initialized MLP; record the input of its last projection."""
    torch.manual_seed(seed)
    activation = settings["activation"]
    units, units_theory = [], []
    for width in WIDTHS:  # the widest is the last
        mlp = MLP(width, activation=activation)
        seen: list[Tensor] = []
        mlp.down.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        x = RMSNorm(width, elementwise_affine=False)(torch.randn(TOKENS, width))
        with torch.no_grad():
            out = mlp(x)
            before = rms(mlp.up(x))
        (hidden,) = seen
        mean, size, aligned_mean = _theory(activation, before)
        units.append((width, rms(hidden.mean(0)) / rms(hidden)))
        # Gate and up of a unit are two random directions: their cosine is about 1 / sqrt(width), and so is its mean.
        expected = (aligned_mean / size) ** 2 / width if activation in GATED else (mean / size) ** 2
        units_theory.append((width, math.sqrt(expected + 1 / TOKENS)))
    return {
        "mean": hidden.double().mean().item() / rms(hidden),
        "theory": mean / size,
        "behind": rms(out.mean(-1)) / rms(out),
        "units": units,
        "units_theory": units_theory,
    }


def _theory(name: str, size: float) -> tuple[float, float, float]:
    """Mean and rms for Gaussian inputs of this size; for a gated MLP also the mean if both halves were equal."""
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    activation = ACTIVATIONS[name]
    act: Tensor = activation.function(size * z)

    def mean_of(values: Tensor) -> float:
        return (density * values).sum().item()

    square = math.sqrt(mean_of(act.square()))
    if activation.gated:  # times another, independent Gaussian
        return 0.0, size * square, size * mean_of(z * act)
    return mean_of(act), square, 0.0


def questions(budget: lab.Budget) -> list[lab.Question]:
    unit = "of the rms"
    near = f"{', '.join(GATED)}: the hidden mean is close to zero"
    matching = "all six match theory for Gaussian inputs"
    after = "after the MLP, where a norm sees it, a token's mean is within random fluctuation for all six"
    return [
        lab.largest(near, lambda run: abs(run["mean"]), NEAR_ZERO, GATED, unit=unit),
        lab.smallest("relu: it is not", "mean", FAR, ["relu"], unit=unit),
        lab.largest(matching, lambda run: abs(run["mean"] - run["theory"]), TOLERANCE, unit=unit),
        lab.largest(after, "behind", MAX_RANDOM_MEAN, unit=unit),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def measured(label: str, metric: str, color: str, shift: float) -> lab.ChartLine:
        return lab.interval_dots(label, [(at + shift, runs.interval(n, metric)) for at, n in enumerate(NAMES)], color)

    theory = [(at, runs.mean(name, "theory")) for at, name in enumerate(NAMES)]
    means = [
        measured("hidden", "mean", "a", -0.16),
        lab.ChartLine("hidden, theory", theory, "b", connected=False),
        measured("after the MLP", "behind", "c", 0.16),
    ]
    units = []
    for name, color in (("relu", "a"), ("swiglu", "b"), ("reglu", "c")):
        units.append(lab.ChartLine(name, runs.curve(name, "units"), color, dots=True))
        units.append(lab.ChartLine("theory", runs.curve(name, "units_theory"), color, dashed=True))
    noise = [("random mean after the MLP", RANDOM_MEAN)]
    title = "Mean of the hidden activations and of the output"
    return [
        lab.Chart(title, "activation", "mean / rms", means, noise, NAMES, y_from_zero=True),
        lab.Chart("Means of single units", "width", "rms of the means / rms", units, log_x=True, y_from_zero=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
