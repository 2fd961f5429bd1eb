"""The mean of what is inside of an MLP, by its activation, and what a norm behind it would see of that."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.blocks.mlp import ACTIVATIONS, MLP
from normscope.blocks.norm import RMSNorm
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import interval_dots
from normscope.lab.trials.layers import rms
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

PLAIN, GATED = ("relu", "gelu", "relu2"), ("swiglu", "geglu", "reglu")
WIDTHS = (8, 16, 32, 64, 128)
TOKENS = 512
NEAR_ZERO = 0.05
"""Of the hidden numbers' rms: centring would take a thousandth of their energy away."""
FAR = 0.3
"""Here it would take a tenth of it."""
TOLERANCE = 0.03
"""Of mean over rms: a few times what so many units do by chance."""
CHANCE = 1 / math.sqrt(WIDTHS[-1])
"""The mean of that many independent numbers of size 1: what any token has."""
BY_CHANCE = 2 * CHANCE
"""More than chance does to a fixed mean in a thousand draws; even there centring takes 3% of a token's energy."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {activation: {"activation": activation} for activation in (*PLAIN, *GATED)}


def measure(settings: Settings, seed: int) -> Metrics:
    """Random tokens through RMSNorm into an MLP with its first weights; what arrives at its last projection?"""
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
        mean, size, pull = _theory(activation, before)
        units.append((width, rms(hidden.mean(0)) / rms(hidden)))
        # Gate and up of a unit are two random directions: their cosine is about 1 / sqrt(width), and so is its mean.
        chance = (pull / size) ** 2 / width if activation in GATED else (mean / size) ** 2
        units_theory.append((width, math.sqrt(chance + 1 / TOKENS)))
    return {
        "mean": hidden.double().mean().item() / rms(hidden),
        "theory": mean / size,
        "behind": rms(out.mean(-1)) / rms(out),
        "units": units,
        "units_theory": units_theory,
    }


def _theory(name: str, size: float) -> tuple[float, float, float]:
    """Mean and rms for Gaussian inputs of this size; and of a gated one the mean if both halves were the same."""
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    activation = ACTIVATIONS[name]
    act: Tensor = activation.function(size * z)

    def mean_of(values: Tensor) -> float:
        return (density * values).sum().item()

    square = math.sqrt(mean_of(act.square()))
    if activation.gated:  # times another Gaussian that knows nothing of the gate
        return 0.0, size * square, size * mean_of(z * act)
    return mean_of(act), square, 0.0


def questions(budget: Budget) -> list[Question]:
    def gated(runs: BySeed) -> float:
        return max(abs(float(runs[name]["mean"])) for name in GATED)

    def relu(runs: BySeed) -> float:
        return float(runs["relu"]["mean"])

    def off(runs: BySeed) -> float:
        return max(abs(float(metrics["mean"] - metrics["theory"])) for metrics in runs.values())

    def behind(runs: BySeed) -> float:
        return max(float(metrics["behind"]) for metrics in runs.values())

    unit = "of the rms"
    return [
        Question(f"{', '.join(GATED)}: the hidden mean is near zero", gated, NEAR_ZERO, "below", unit, every_seed=True),
        Question("relu: it is not", relu, FAR, "above", unit, every_seed=True),
        Question("all six are as theory says of Gaussian inputs", off, TOLERANCE, "below", unit, every_seed=True),
        Question(
            "behind the MLP, where a norm sees it, a token's mean is what chance makes it with all six",
            behind,
            BY_CHANCE,
            "below",
            unit,
            every_seed=True,
        ),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    names = (*PLAIN, *GATED)

    def measured(label: str, metric: str, colour: str, shift: float) -> ChartLine:
        return interval_dots(
            label, [(at + shift, runs.interval(name, metric)) for at, name in enumerate(names)], colour
        )

    means = [
        measured("hidden", "mean", "a", -0.16),
        ChartLine(
            "hidden, theory", [(at, runs.mean(name, "theory")) for at, name in enumerate(names)], "b", connected=False
        ),
        measured("behind the MLP", "behind", "c", 0.16),
    ]
    chance = [("chance behind the MLP", CHANCE)]
    units = []
    for name, colour in (("relu", "a"), ("swiglu", "b"), ("reglu", "c")):
        units.append(ChartLine(name, runs.curve(name, "units"), colour, dots=True))
        units.append(ChartLine("theory", runs.curve(name, "units_theory"), colour, dashed=True))
    return [
        Chart(
            "Mean inside of an MLP and behind it", "activation", "mean / rms", means, chance, names, y_from_zero=True
        ),
        Chart("Means of single units", "width", "their rms / rms", units, log_x=True, y_from_zero=True),
    ]


CLAIM = Claim(
    number=19,
    name="hidden-mean",
    kind="exact",
    statement=(
        "With GLU activations the mean of the hidden numbers is near zero, with ReLU it is not; but behind the MLP, "
        "where a norm would see it, the mean of a token's features is what chance makes it with either."
    ),
    source="Notes on normalization; Shazeer 2020, “GLU Variants Improve Transformer” (the activations).",
    design=(
        "Random tokens through RMSNorm into MLPs with their first weights, 8 to 128 wide; of the widest, the mean over "
        "all tokens and all hidden units, over their rms; and behind the last projection, the mean over a token's "
        "features, its rms over the tokens, over the rms of all."
    ),
    rule=(
        f"Supported if, for every seed, the hidden mean is below {NEAR_ZERO:g} with SwiGLU, GEGLU and ReGLU, above "
        f"{FAR:g} with ReLU, and within {TOLERANCE:g} of theory with all; and a token's mean behind the MLP is below "
        f"{BY_CHANCE:.3f} with all, twice what {WIDTHS[-1]} independent numbers have."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "What is inside of a gated MLP has no common mean, while ReLU's is more than half of its rms (1 over the "
            "root of pi). But no norm sees the inside: the last projection, whose weights are random, turns a common "
            "mean of the hidden units into a vector of no common mean, so behind the MLP ReLU leaves as little to "
            "centre as GLUs do. Nor has each unit of a GLU a mean of zero: it has one of its own, somewhat less than "
            "one over the root of the width. All of this is of the first weights. Training may change it."
        ),
        "contradicted": "Do not argue for RMSNorm from the mean of gated activations: it is not what is said.",
        "inconclusive": "The means are too close to the lines to tell.",
    },
    remark=(
        "The notes argue that a norm can do without centring because gated activations bring no mean with them. That "
        "they bring less is so, but it stays inside of the MLP, and the argument fails there: at the start, what ReLU "
        "sends into the stream has no more of a mean than what a GLU does."
    ),
    revised="a part of its design",
)
