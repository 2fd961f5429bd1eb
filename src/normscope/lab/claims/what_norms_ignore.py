"""RMSNorm ignores the size of its input, LayerNorm a constant too."""

from collections.abc import Mapping
from typing import Any

import torch

from normscope.display.chart import Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.runs import Runs
from normscope.lab.trials.layers import LIBRARIES, apart, furthest_apart, rms
from normscope.lab.verdict import BySeed, Figures, Question

WIDTH, TOKENS = 256, 64
SHAPES = ((7,), (5, 7), (2, 3, 7), (2, 1, 3, 7))
FACTORS = (0.1, 0.5, 3.0, 100.0, 1e4)
CONSTANTS = (-100.0, -1.0, 0.1, 1.0, 10.0, 100.0)
DECADES = [10 ** (power / 2) for power in range(-12, 13)]
EPS = 1e-5
ROUNDING = 1e-4
"""Of outputs of size 1: 100 + x has lost that much of x in float32, before any norm sees it, a few times over."""
DIFFERENT = 0.1
"""A tenth of the output's size: what no model would overlook."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        f"{library} {dtype}": {"library": library, "dtype": dtype}
        for library in LIBRARIES
        for dtype in ("float32", "float64")
    }


def measure(settings: Settings, seed: int) -> Figures:
    """Random tokens, as they are, scaled, and moved by a constant, through RMSNorm and LayerNorm."""
    library: Any = LIBRARIES[settings["library"]]
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=chance, dtype=dtype)
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt()  # of size 1, so that k is the size that a norm sees
    rms_norm, layer_norm = library.RMSNorm(WIDTH, dtype=dtype), library.LayerNorm(WIDTH, dtype=dtype)
    with_eps = library.RMSNorm(WIDTH, eps=EPS, dtype=dtype)
    y = rms_norm(x)
    sizes = y.detach().double().square().mean(dim=-1).sqrt()
    others = [torch.randn(shape, generator=chance, dtype=dtype) for shape in SHAPES]
    return {
        "scaled": max(furthest_apart(rms_norm(k * x), y) for k in FACTORS),
        "turned": furthest_apart(rms_norm(-x), -y),
        "size": (sizes - 1).abs().max().item(),
        "shapes": sum(library.RMSNorm(7, dtype=dtype)(other).shape != other.shape for other in others),
        "moved_layer": max(furthest_apart(layer_norm(x + c), layer_norm(x)) for c in CONSTANTS),
        "moved_rms": apart(rms_norm(x + 1), y),
        "size_by_factor": [(k, rms(rms_norm(k * x))) for k in DECADES],
        "size_with_eps": [(k, rms(with_eps(k * x))) for k in DECADES],
        "layer_by_constant": [(c, apart(layer_norm(x + c), layer_norm(x))) for c in DECADES if 1e-3 <= c <= 1e3],
        "rms_by_constant": [(c, apart(rms_norm(x + c), y)) for c in DECADES if 1e-3 <= c <= 1e3],
    }


def questions(budget: Budget) -> list[Question]:
    def at_most(figure: str, text: str, line: float = ROUNDING) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(figures[figure]) for figures in runs.values())

        return Question(text, effect, line=line, side="below", always=True)

    def least_moved(runs: BySeed) -> float:
        return min(float(figures["moved_rms"]) for figures in runs.values())

    return [
        at_most("scaled", f"RMSNorm(kx) is RMSNorm(x), for k from {FACTORS[0]:g} to {FACTORS[-1]:g}"),
        at_most("turned", "RMSNorm(-x) is -RMSNorm(x): the sign of k is not ignored"),
        at_most("size", "the rms of every token that comes out is 1"),
        at_most("shapes", "no shape is changed (shapes that were)", 0.5),
        at_most("moved_layer", "LayerNorm ignores a constant added to every feature, up to 100 times their size"),
        Question("RMSNorm does not ignore a constant of the features' size", least_moved, line=DIFFERENT, always=True),
    ]


def charts(runs: Runs) -> list[Chart]:
    variant = "normscope float32"
    eps = torch.finfo(torch.float32).eps

    def size(eps: float) -> list[tuple[float, float]]:
        return [(k, (k * k / (k * k + eps)) ** 0.5) for k in DECADES]

    moved = runs.curve(variant, "rms_by_constant")
    # (x + c) / s - x with s^2 = 1 + c^2, for features of mean 0 and size 1
    theory = [(c, ((1 / (1 + c * c) ** 0.5 - 1) ** 2 + c * c / (1 + c * c)) ** 0.5) for c, _ in moved]
    return [
        Chart(
            "RMSNorm: what comes out when x is k times as large",
            "k",
            "output's rms",
            [
                Line("torch's usual eps, 1.2e-7", runs.curve(variant, "size_by_factor"), "a", joined=False),
                Line("theory", size(eps), "a", dashed=True),
                Line("eps 1e-5", runs.curve(variant, "size_with_eps"), "b", joined=False),
                Line("theory", size(EPS), "b", dashed=True),
            ],
            log_x=True,
            log_y=True,
        ),
        Chart(
            "How far a constant moves the output",
            "constant added to every feature, in their size",
            "change (rms)",
            [
                Line("RMSNorm", moved, "a", joined=False),
                Line("RMSNorm, theory", theory, "a", dashed=True),
                Line("LayerNorm", runs.curve(variant, "layer_by_constant"), "b", dots=True),
            ],
            log_x=True,
        ),
    ]


CLAIM = Claim(
    number=8,
    name="what-norms-ignore",
    kind="exact",
    statement=(
        "RMSNorm(kx) = RMSNorm(x) for every k > 0, what comes out has an rms of 1 and the shape that went in; "
        "LayerNorm ignores a constant added to every feature, which RMSNorm does not."
    ),
    source=(
        "Notes on residuals and on normalization; Zhang and Sennrich 2019, “Root Mean Square Layer Normalization”; Ba, "
        "Kiros and Hinton 2016, “Layer Normalization”."
    ),
    design=(
        "Random tokens of 256 features and size 1, scaled and moved, through normscope's layers and torch's at their "
        "start, in float32 and float64."
    ),
    rule=(
        f"Supported if, for every seed, library and type, no number is off by {ROUNDING:g}, and a constant as large as "
        f"the features moves RMSNorm's output by more than {DIFFERENT:g}."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "What enters a block is of one size, however large the stream has grown, so the scale of the weights "
            "before a norm has no effect on what comes out. It ends where eps begins: signals smaller than its root "
            "are not brought to size 1. Whoever replaces LayerNorm by RMSNorm lets the features' common mean pass."
        ),
        "contradicted": "A norm lets something pass that it is said to ignore: look below for which, and at what size.",
        "inconclusive": "The differences are too close to rounding to tell.",
    },
    remark="It is often written for any k, but a negative one turns the sign of the output.",
)
