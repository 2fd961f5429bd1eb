"""Gain and bias start by doing nothing, and can give back what went into the norm."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms, rms_difference
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

TOKENS, WIDTH = 256, 32
SPREADS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
USUAL = 0.5
"""How much tokens differ: the standard deviation of the logarithm of their sizes, most within half and twice the usual
one; and that of their means over the features, in the size of a usual token."""
BATCHES = (32, 64, 128, 256, 512)
NORMS = {"BatchNorm": "BatchNorm1d", "LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}
ROUNDING = 1e-6
RECOVERED = 0.01
"""Of the size of x: whoever gets back 99% of it would say that the norm was undone."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        f"{library} {norm}": {"library": library, "layer": layer}
        for library in LIBRARIES
        for norm, layer in NORMS.items()
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """The layer with the gain and bias that bring its output nearest to its input: least squares for each feature."""
    library: Any = LIBRARIES[settings["library"]]
    chance = torch.Generator().manual_seed(seed)

    def error(x: Tensor, other: Tensor | None = None, training: bool = True) -> float:
        """What is missing of a batch, the one that was fitted or another."""
        layer = getattr(library, settings["layer"])(WIDTH)
        layer(x)  # by which BatchNorm gets something to remember
        _fit(layer.train(training), x)
        given = x if other is None else other
        return rms_difference(layer(given), given) / rms(given)

    def tokens(many: int = TOKENS, sizes: float = USUAL, means: float = USUAL, common: float = 0.0) -> Tensor:
        return _tokens(chance, many, sizes, means) + common

    first, second = tokens(), tokens()
    return {
        "start": _start(library, chance),
        "alike": error(tokens(sizes=0.0, means=0.0, common=USUAL)),
        "sizes": error(tokens(means=0.0)),
        "means": error(tokens(sizes=0.0)),
        "fitted": error(first),
        "again in training": error(first, second),
        "again in eval": error(first, second, training=False),
        "by_sizes": [(spread, error(tokens(sizes=spread, means=0.0))) for spread in SPREADS],
        "by_means": [(spread, error(tokens(sizes=0.0, means=spread))) for spread in SPREADS],
        "by_batch_fitted": [(many, error(tokens(many))) for many in BATCHES],
        "by_batch_training": [(many, error(tokens(many), tokens(many))) for many in BATCHES],
        "by_batch_eval": [(many, error(tokens(many), tokens(many), training=False)) for many in BATCHES],
    }


def _tokens(chance: torch.Generator, many: int, sizes: float, means: float) -> Tensor:
    """Random tokens, whose sizes and whose means over the features differ."""
    z = torch.randn(many, WIDTH, generator=chance, dtype=torch.float64)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0)
    size, mean = torch.randn(2, many, 1, generator=chance, dtype=torch.float64)
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


def _start(library: Any, chance: torch.Generator) -> float:
    """How far layers that have just been made are from those without gain and bias, in all the named norms."""
    images = 3 * torch.randn(4, 6, 5, 5, generator=chance) + 2
    pairs = [
        (library.LayerNorm((6, 5, 5)), library.LayerNorm((6, 5, 5), elementwise_affine=False)),
        (library.RMSNorm(5), library.RMSNorm(5, elementwise_affine=False)),
        (library.GroupNorm(2, 6), library.GroupNorm(2, 6, affine=False)),
        (library.BatchNorm2d(6), library.BatchNorm2d(6, affine=False)),
        (library.InstanceNorm2d(6, affine=True), library.InstanceNorm2d(6)),
    ]
    return max(max_difference(one(images), other(images)) for one, other in pairs)


def questions(budget: Budget) -> list[Question]:
    def below(text: str, metric: str, threshold: float, norms: list[str]) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(runs[f"{library} {norm}"][metric]) for library in LIBRARIES for norm in norms)

        return Question(text, effect, threshold=threshold, side="below", every_seed=True)

    start = "all norms: with the first gain and bias, what comes out is what was standardized"
    alike = "all norms: tokens of one size and one mean come back (error as a share of x)"
    batch, token = ["BatchNorm"], [norm for norm in NORMS if norm != "BatchNorm"]
    return [
        below(start, "start", ROUNDING, list(NORMS)),
        below(alike, "alike", RECOVERED, list(NORMS)),
        below("BatchNorm: so do tokens that differ in both, of the batch it was fitted to", "fitted", RECOVERED, batch),
        below("BatchNorm in eval mode: so do those of another batch", "again in eval", RECOVERED, batch),
        below("BatchNorm in training: so do those of another batch", "again in training", RECOVERED, batch),
        *(below(f"{norm}: so do tokens whose sizes differ", "sizes", RECOVERED, [norm]) for norm in token),
        *(below(f"{norm}: so do tokens whose means differ", "means", RECOVERED, [norm]) for norm in token),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    colours = dict(zip(NORMS, "abc", strict=True))

    def chart(title: str, label: str, metric: str, *theories: ChartLine) -> Chart:
        lines = [
            # RMSNorm's sometimes lie on LayerNorm's, so its dots do without a line.
            ChartLine(norm, runs.curve(f"normscope {norm}", metric), colour, dots=True, connected=norm != "RMSNorm")
            for norm, colour in colours.items()
        ]
        return Chart(title, label, "error, as a share of x", [*lines, *theories])

    # A gain for each feature can only give every token the mean size, and a bias only the mean of all.
    sizes = [(spread, (1 - math.exp(-(spread**2))) ** 0.5) for spread in SPREADS]
    means = [(spread, spread / (1 + spread**2) ** 0.5) for spread in SPREADS]
    by_batch = [
        ChartLine(
            label, runs.curve("normscope BatchNorm", f"by_batch_{metric}"), colour, dots=True, connected=colour != "c"
        )
        for label, metric, colour in (
            ("another batch, in training", "training", "a"),
            ("another batch, in eval mode", "eval", "b"),
            ("the batch it was fitted to", "fitted", "c"),
        )
    ]
    theory = ChartLine("theory, in training", [(many, _between_batches(many)) for many in BATCHES], "a", dashed=True)
    return [
        chart(
            "What gain and bias cannot give back: sizes",
            "spread of the tokens' sizes (logarithm)",
            "by_sizes",
            ChartLine("theory", sizes, "b", dashed=True),
        ),
        chart(
            "What gain and bias cannot give back: means",
            "spread of the tokens' means",
            "by_means",
            ChartLine("LayerNorm, theory", means, "b", dashed=True),
        ),
        Chart(
            "BatchNorm on other batches", "tokens in a batch", "error, as a share of x", [*by_batch, theory], log_x=True
        ),
    ]


def _between_batches(many: int) -> float:
    """What two batches of so many tokens differ in: their means, and their sizes, which a few large tokens decide."""
    size, mean = math.exp(2 * USUAL**2), USUAL**2  # the variances that make up a feature's
    fourth = 3 * math.exp(8 * USUAL**2) + 6 * size * mean + 3 * mean**2
    return math.sqrt((2 + (fourth / (size + mean) ** 2 - 1) / 2) / many)


CLAIM = Claim(
    number=11,
    name="affine-undoes-norm",
    kind="exact",
    statement=(
        "Gain 1 and bias 0 start as the identity after standardizing, and gain and bias can undo the norm: there are "
        "values that recover x from y."
    ),
    source=(
        "Notes on LayerNorm and on normalization; Ioffe and Szegedy 2015, “Batch Normalization: Accelerating Deep "
        "Network Training by Reducing Internal Covariate Shift”."
    ),
    design=(
        "Random tokens whose sizes differ, and their means over the features too, through BatchNorm, LayerNorm and "
        "RMSNorm of normscope and of torch, each with the gain and bias that bring its output nearest to its input by "
        "least squares. BatchNorm is then given another batch of such tokens, in training and in eval mode."
    ),
    rule=(
        f"Supported if, for every seed and in both libraries, layers at their start are within {ROUNDING:g} of those "
        f"without gain and bias, and each of the three norms can give back x with an error below {RECOVERED:.0%}: "
        "LayerNorm and RMSNorm tokens of different sizes and of different means, BatchNorm those of the batch it was "
        "fitted to and of another, in both modes."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": "No norm takes away what its gain and bias could not give back, so adding one loses nothing.",
        "contradicted": (
            "A norm can be undone only where gain and bias are over the same axes as the statistics, as BatchNorm's "
            "are, one pair for each channel, and only where the statistics stand still: in eval mode, or for one fixed "
            "batch. In training the next batch has others, and is given the first one's instead. LayerNorm and RMSNorm "
            "measure each token and have a gain for each feature, so the token's own size is gone for good, and with "
            "LayerNorm its mean as well; in a transformer the residual stream keeps them."
        ),
        "inconclusive": "What comes back is too near to the line to say that the norm was undone.",
    },
    remark=(
        "The paper says it of BatchNorm, and of a batch. The notes say it of LayerNorm too: that training could find "
        "back what was normalized away."
    ),
    revised="the norm was undone on the batch that gain and bias were fitted to",
)
