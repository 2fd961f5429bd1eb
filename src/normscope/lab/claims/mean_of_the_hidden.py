"""The mean of what is inside of an MLP, by its activation."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.blocks.mlp import ACTIVATIONS, MLP
from normscope.blocks.norm import RMSNorm
from normscope.display.chart import Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.runs import Runs
from normscope.lab.trials.layers import rms
from normscope.lab.verdict import BySeed, Figures, Question

PLAIN, GATED = ("relu", "gelu", "relu2"), ("swiglu", "geglu", "reglu")
WIDTHS = (8, 16, 32, 64, 128)
TOKENS = 512
NEAR_ZERO = 0.05
"""Of the hidden numbers' rms: centring would take a thousandth of their energy away."""
FAR = 0.3
"""Here it would take a tenth of it."""
TOLERANCE = 0.03
"""Of mean over rms: a few times what so many units do by chance."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {activation: {"activation": activation} for activation in (*PLAIN, *GATED)}


def measure(settings: Settings, seed: int) -> Figures:
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
            mlp(x)
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
        return max(abs(float(figures["mean"] - figures["theory"])) for figures in runs.values())

    unit = "of the rms"
    return [
        Question(f"{', '.join(GATED)}: the hidden mean is near zero", gated, NEAR_ZERO, "below", unit, always=True),
        Question("relu: it is not", relu, FAR, "above", unit, always=True),
        Question("all six are as theory says of Gaussian inputs", off, TOLERANCE, "below", unit, always=True),
    ]


def charts(runs: Runs) -> list[Chart]:
    names = (*PLAIN, *GATED)
    found = [(at - 0.08, runs.interval(name, "mean")) for at, name in enumerate(names)]
    means = [
        Line(
            "measured",
            [(at, interval.middle) for at, interval in found],
            "a",
            joined=False,
            reach=[(at, interval.low, interval.high) for at, interval in found],
        ),
        Line("theory", [(at + 0.08, runs.mean(name, "theory")) for at, name in enumerate(names)], "b", joined=False),
    ]
    units = []
    for name, colour in (("relu", "a"), ("swiglu", "b"), ("reglu", "c")):
        units.append(Line(name, runs.curve(name, "units"), colour, dots=True))
        units.append(Line("theory", runs.curve(name, "units_theory"), colour, dashed=True))
    return [
        Chart("Mean of all hidden numbers", "activation", "mean / rms", means, names=names, from_zero=True),
        Chart("Means of single units", "width", "their rms / rms", units, log_x=True, from_zero=True),
    ]


CLAIM = Claim(
    number=19,
    name="mean-of-the-hidden",
    kind="exact",
    statement="With GLU activations the mean of the hidden numbers is near zero, with ReLU it is not.",
    source="Notes on normalization; Shazeer 2020, “GLU Variants Improve Transformer” (the activations).",
    design=(
        "Random tokens through RMSNorm into MLPs with their first weights, 8 to 128 wide; the mean is over all tokens "
        "and all hidden units of the widest, over their rms."
    ),
    rule=(
        f"Supported if, for every seed, it is below {NEAR_ZERO:g} with SwiGLU, GEGLU and ReGLU, above {FAR:g} with "
        f"ReLU, and within {TOLERANCE:g} of theory with all."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "A gated MLP brings no common mean with it that a norm would have to take away, while ReLU's is more than "
            "half of its rms (1 over the root of pi). But that is the mean over all units: each unit of a narrow GLU "
            "has a mean of its own, one over the root of the width, and these are the first weights. Training may "
            "change it."
        ),
        "contradicted": "Do not argue for RMSNorm from the mean of gated activations: it is not what is said.",
        "inconclusive": "The means are too close to the lines to tell.",
    },
)
