"""Gain and bias start by doing nothing, and can give back what went into the norm."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.display.chart import Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.runs import Runs
from normscope.lab.trials.layers import LIBRARIES, apart, furthest_apart, rms
from normscope.lab.verdict import BySeed, Figures, Question

TOKENS, WIDTH = 256, 32
SPREADS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
USUAL = 0.5
"""The standard deviation of the logarithm of the tokens' sizes: most are within half and twice the usual one."""
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


def measure(settings: Settings, seed: int) -> Figures:
    """The layer with the gain and bias that bring its output nearest to its input: least squares for each feature."""
    library: Any = LIBRARIES[settings["library"]]
    chance = torch.Generator().manual_seed(seed)
    z = torch.randn(TOKENS, WIDTH, generator=chance, dtype=torch.float64)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0)
    logarithms = torch.randn(TOKENS, 1, generator=chance, dtype=torch.float64)

    def tokens(spread: float) -> Tensor:
        return ((spread * logarithms).exp() * z).float()

    errors = [(spread, _undone(library, settings["layer"], tokens(spread))[0]) for spread in SPREADS]
    x = tokens(USUAL)
    _, y = _undone(library, settings["layer"], x)
    sizes = zip(x.square().mean(1).sqrt().tolist(), y.square().mean(1).sqrt().tolist(), strict=True)
    return {
        "start": _start(library, chance),
        "error": dict(errors)[USUAL],
        "alike": errors[0][1],
        "errors": errors,
        "sizes": sorted(sizes)[::4],
    }


def _undone(library: Any, name: str, x: Tensor) -> tuple[float, Tensor]:
    layer = getattr(library, name)(WIDTH)
    bias = getattr(layer, "bias", None)  # RMSNorm has none
    y = layer(x).detach()
    mean_x, mean_y = (torch.zeros(WIDTH), torch.zeros(WIDTH)) if bias is None else (x.mean(0), y.mean(0))
    gain = ((x - mean_x) * (y - mean_y)).mean(0) / (y - mean_y).square().mean(0)
    with torch.no_grad():
        layer.weight.copy_(gain)
        if bias is not None:
            bias.copy_(mean_x - gain * mean_y)
    back = layer(x).detach()
    return apart(back, x) / rms(x), back


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
    return max(furthest_apart(one(images), other(images)) for one, other in pairs)


def questions(budget: Budget) -> list[Question]:
    def below(text: str, figure: str, line: float, norms: list[str]) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(runs[f"{library} {norm}"][figure]) for library in LIBRARIES for norm in norms)

        return Question(text, effect, line=line, side="below", always=True)

    start = "all norms: with the first gain and bias, what comes out is what was standardised"
    alike = "all norms: tokens of one size come back (error as a share of x)"
    return [
        below(start, "start", ROUNDING, list(NORMS)),
        below(alike, "alike", RECOVERED, list(NORMS)),
        *(below(f"{norm}: so do tokens whose sizes differ", "error", RECOVERED, [norm]) for norm in NORMS),
    ]


def charts(runs: Runs) -> list[Chart]:
    colours = dict(zip(NORMS, "abc", strict=True))
    lines = [
        # RMSNorm's lie on LayerNorm's, so its dots do without a line.
        Line(norm, runs.curve(f"normscope {norm}", "errors"), colour, dots=True, joined=norm != "RMSNorm")
        for norm, colour in colours.items()
    ]
    # A gain for each feature can only give every token the mean size.
    theory = [(spread, (1 - math.exp(-(spread**2))) ** 0.5) for spread in SPREADS]
    first = {norm: runs.figures[f"normscope {norm}"][0]["sizes"] for norm in ("BatchNorm", "LayerNorm")}
    sizes = [
        Line(norm, [(before, after) for before, after in points], colours[norm], joined=False)
        for norm, points in first.items()
    ]
    longest = max(size for size, _ in first["BatchNorm"])
    return [
        Chart(
            "What gain and bias cannot give back",
            "how much the tokens' sizes differ (of their logarithm)",
            "error, as a share of x",
            [*lines, Line("theory, each token by itself", theory, "b", dashed=True)],
        ),
        Chart(
            "Sizes of tokens, before the norm and as given back",
            "size of x",
            "size of what came back",
            [*sizes, Line("all of it", [(0.0, 0.0), (longest, longest)], "a", dashed=True)],
        ),
    ]


CLAIM = Claim(
    number=11,
    name="affine-undoes-norm",
    kind="exact",
    statement=(
        "Gain 1 and bias 0 start as the identity after standardising, and gain and bias can undo the norm: there are "
        "values that recover x from y."
    ),
    source=(
        "Notes on LayerNorm and on normalization; Ioffe and Szegedy 2015, “Batch Normalization: Accelerating Deep "
        "Network Training by Reducing Internal Covariate Shift”."
    ),
    design=(
        "Random tokens whose sizes differ, through BatchNorm in training, LayerNorm and RMSNorm of normscope and of "
        "torch, each with the gain and bias that bring its output nearest to its input by least squares."
    ),
    rule=(
        f"Supported if, for every seed and in both libraries, layers at their start are within {ROUNDING:g} of those "
        f"without gain and bias, and each of the three norms can give back x with an error below {RECOVERED:.0%}."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": "No norm takes away what its gain and bias could not give back, so adding one loses nothing.",
        "contradicted": (
            "A norm can be undone only where gain and bias are over the same axes as the statistics, as BatchNorm's "
            "are: one pair for each channel. LayerNorm and RMSNorm measure each token and have a gain for each "
            "feature, so the token's own size is gone for good; in a transformer the residual stream keeps it."
        ),
        "inconclusive": "What comes back is too near to the line to say that the norm was undone.",
    },
    remark=(
        "The paper says it of BatchNorm. The notes say it of LayerNorm too: that training could find back what was "
        "normalized away."
    ),
)
