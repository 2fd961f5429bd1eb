"""Gain and bias are initialized to do nothing, and can restore the input of the norm."""

import math
from typing import Any

import torch
from torch import Tensor

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, in_both, library_variants, max_difference, rms, rms_difference

TOKENS, WIDTH = 256, 32
SPREADS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
USUAL = 0.5
"""How much tokens differ: the standard deviation of their log scales (most are within a factor of two), and that of
their means over the features, relative to the usual scale."""
BATCHES = (32, 64, 128, 256, 512)
NORMS = {"BatchNorm": "BatchNorm1d", "LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}
FITTED = "the fitted batch"
ROUNDING = 1e-6
RECOVERED = 0.01
"""Relative error of x: recovering 99% counts as undoing the norm."""


def variants(budget: lab.Budget) -> lab.Variants:
    return library_variants({norm: {"layer": layer} for norm, layer in NORMS.items()})


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Fit gain and bias by least squares, per feature, so that the layer's output is as close as possible to x."""
    library: Any = LIBRARIES[settings["library"]]
    rng = torch.Generator().manual_seed(seed)

    def error(x: Tensor, other: Tensor | None = None, training: bool = True) -> float:
        """The relative error of a batch, the fitted one or another."""
        layer = getattr(library, settings["layer"])(WIDTH)
        layer(x)  # fills BatchNorm's running statistics
        _fit(layer.train(training), x)
        given = x if other is None else other
        return rms_difference(layer(given), given) / rms(given)

    def tokens(count: int = TOKENS, sizes: float = USUAL, means: float = USUAL, common: float = 0.0) -> Tensor:
        return _tokens(rng, count, sizes, means) + common

    first, second = tokens(), tokens()
    return {
        "start": _initial_difference(library, rng),
        "alike": error(tokens(sizes=0.0, means=0.0, common=USUAL)),
        "sizes": error(tokens(means=0.0)),
        "means": error(tokens(sizes=0.0)),
        "fitted": error(first),
        "again in training": error(first, second),
        "again in eval": error(first, second, training=False),
        "by_sizes": [(spread, error(tokens(sizes=spread, means=0.0))) for spread in SPREADS],
        "by_means": [(spread, error(tokens(sizes=0.0, means=spread))) for spread in SPREADS],
        "by_batch_fitted": [(count, error(tokens(count))) for count in BATCHES],
        "by_batch_training": [(count, error(tokens(count), tokens(count))) for count in BATCHES],
        "by_batch_eval": [(count, error(tokens(count), tokens(count), training=False)) for count in BATCHES],
    }


def _tokens(rng: torch.Generator, count: int, sizes: float, means: float) -> Tensor:
    """Random tokens that differ in scale and in their mean over the features."""
    z = torch.randn(count, WIDTH, generator=rng, dtype=torch.float64)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0)
    size, mean = torch.randn(2, count, 1, generator=rng, dtype=torch.float64)
    x: Tensor = (sizes * size).exp() * z + means * mean
    return x.float()


def _fit(layer: Any, x: Tensor) -> None:
    bias = getattr(layer, "bias", None)  # RMSNorm has none
    y = layer(x).detach()
    mean_x, mean_y = (torch.zeros(WIDTH), torch.zeros(WIDTH)) if bias is None else (x.mean(0), y.mean(0))
    gain = ((x - mean_x) * (y - mean_y)).mean(0) / (y - mean_y).square().mean(0)
    with torch.no_grad():
        layer.weight.copy_(gain)
        if bias is not None:
            bias.copy_(mean_x - gain * mean_y)


def _initial_difference(library: Any, rng: torch.Generator) -> float:
    """The largest difference between newly built layers with and without gain and bias, over all norms."""
    images = 3 * torch.randn(4, 6, 5, 5, generator=rng) + 2
    pairs = [
        (library.LayerNorm((6, 5, 5)), library.LayerNorm((6, 5, 5), elementwise_affine=False)),
        (library.RMSNorm(5), library.RMSNorm(5, elementwise_affine=False)),
        (library.GroupNorm(2, 6), library.GroupNorm(2, 6, affine=False)),
        (library.BatchNorm2d(6), library.BatchNorm2d(6, affine=False)),
        (library.InstanceNorm2d(6, affine=True), library.InstanceNorm2d(6)),
    ]
    return max(max_difference(one(images), other(images)) for one, other in pairs)


def questions(budget: lab.Budget) -> list[lab.Question]:
    def below(text: str, metric: str, norms: list[str], threshold: float = RECOVERED) -> lab.Question:
        return lab.largest(text, metric, threshold, in_both(*norms))

    alike = "all norms: tokens of equal scale and mean are recovered (relative error)"
    start = "all norms: with the initial gain and bias, the output is the standardized input"
    batch, token = ["BatchNorm"], [norm for norm in NORMS if norm != "BatchNorm"]
    return [
        below(start, "start", list(NORMS), ROUNDING),
        below(alike, "alike", list(NORMS)),
        below("BatchNorm: so are tokens that differ in both, of the batch it was fitted to", "fitted", batch),
        below("BatchNorm in eval mode: so are those of another batch", "again in eval", batch),
        below("BatchNorm in training: so are those of another batch", "again in training", batch),
        *(below(f"{norm}: so are tokens of different scales", "sizes", [norm]) for norm in token),
        *(below(f"{norm}: so are tokens of different means", "means", [norm]) for norm in token),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    error = "relative error of x"

    def chart(title: str, x_label: str, metric: str, label: str, theory: lab.Points) -> lab.Chart:
        # RMSNorm's points can lie on LayerNorm's line, so they are drawn without one.
        found = {norm: runs.curve(f"normscope {norm}", metric) for norm in NORMS}
        lines = [*lab.lines(found, dots_only=["RMSNorm"]), lab.ChartLine(label, theory, "b", dashed=True)]
        return lab.Chart(title, x_label, error, lines)

    # A gain per feature can only give every token the mean scale, and a bias only the overall mean.
    sizes = [(spread, (1 - math.exp(-(spread**2))) ** 0.5) for spread in SPREADS]
    means = [(spread, spread / (1 + spread**2) ** 0.5) for spread in SPREADS]
    named = {"another batch, in training": "training", "another batch, in eval mode": "eval", FITTED: "fitted"}
    by_batch = {label: runs.curve("normscope BatchNorm", f"by_batch_{metric}") for label, metric in named.items()}
    expected = [(count, _between_batches(count)) for count in BATCHES]
    in_training = lab.ChartLine("theory, in training", expected, "a", dashed=True)
    batch_lines = [*lab.lines(by_batch, dots_only=[FITTED]), in_training]
    return [
        chart("Not recoverable: token scales", "spread of the tokens' log scales", "by_sizes", "theory", sizes),
        chart("Not recoverable: token means", "spread of the tokens' means", "by_means", "LayerNorm, theory", means),
        lab.Chart("BatchNorm on other batches", "tokens in a batch", error, batch_lines, log_x=True),
    ]


def _between_batches(count: int) -> float:
    """How much two batches of this many tokens differ: in their means, and in their scales, set by a few outliers."""
    size, mean = math.exp(2 * USUAL**2), USUAL**2  # the two parts of a feature's variance
    fourth = 3 * math.exp(8 * USUAL**2) + 6 * size * mean + 3 * mean**2
    return math.sqrt((2 + (fourth / (size + mean) ** 2 - 1) / 2) / count)


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
