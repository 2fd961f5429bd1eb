"""RMSNorm ignores the size of its input, LayerNorm a constant too."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms, rms_difference
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

WIDTH, TOKENS = 256, 64
SHAPES = ((7,), (5, 7), (2, 3, 7), (2, 1, 3, 7))
FACTORS = [10.0**power for power in range(-12, 13)]
"""Whose squares float32 can hold; beyond them it is the type that ends, not the identity."""
CONSTANTS = (-100.0, -1.0, 0.1, 1.0, 10.0, 100.0)
DECADES = [10 ** (power / 2) for power in range(-12, 13)]
EPSILONS: Mapping[str, float | None] = {"usual": None, "1e-5": 1e-5}
"""None is what RMSNorm has if nothing is said, the type's own rounding; 1e-5 is what normscope's models give it."""
ROUNDINGS = 100.0
"""How often a number may be rounded, each time by its type's eps. The steps of a norm and outputs of up to 4 make about
ten of it, and another processor may take other steps; an eps of 1e-5 would show at a k of 1 already."""
FAR, NEARLY = 10.0, 0.01
"""Times the root of eps, and of the output: there eps takes half a hundredth of it."""
DIFFERENT = 0.1
"""A tenth of the output's size: what no model would overlook."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        f"{library} {dtype}": {"library": library, "dtype": dtype}
        for library in LIBRARIES
        for dtype in ("float32", "float64")
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """Random tokens, as they are, scaled, and moved by a constant, through RMSNorm and LayerNorm."""
    library: Any = LIBRARIES[settings["library"]]
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    rounding = torch.finfo(dtype).eps
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=chance, dtype=dtype)
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt()  # of size 1, so that k is the size that a norm sees
    exact, layer_norm = library.RMSNorm(WIDTH, eps=0.0, dtype=dtype), library.LayerNorm(WIDTH, dtype=dtype)
    y = exact(x)
    sizes = y.detach().double().square().mean(dim=-1).sqrt()
    others = [torch.randn(shape, generator=chance, dtype=dtype) for shape in SHAPES]
    moved = [(c, max_difference(layer_norm(x + c), layer_norm(x))) for c in CONSTANTS]
    metrics: dict[str, Any] = {
        "scaled": max(max_difference(exact(k * x), y) for k in FACTORS) / rounding,
        "turned": max_difference(exact(-x), -y) / rounding,
        "size": (sizes - 1).abs().max().item() / rounding,
        "shapes": sum(library.RMSNorm(7, dtype=dtype)(other).shape != other.shape for other in others),
        # c + x has been rounded by as much as c is larger than x before any norm sees it
        "moved_layer": max(change / max(1.0, abs(c)) for c, change in moved) / rounding,
        "moved_rms": rms_difference(exact(x + 1), y),
        "size_by_factor": [(k, rms(exact(k * x))) for k in DECADES],
        "layer_by_constant": [
            (c, rms_difference(layer_norm(x + c), layer_norm(x))) for c in DECADES if 1e-3 <= c <= 1e3
        ],
        "rms_by_constant": [(c, rms_difference(exact(x + c), y)) for c in DECADES if 1e-3 <= c <= 1e3],
    }
    for name, given in EPSILONS.items():
        norm, eps = library.RMSNorm(WIDTH, eps=given, dtype=dtype), rounding if given is None else given
        found = [(k, rms(norm(k * x))) for k in DECADES]
        theory = [(k, _size(k, eps)) for k in DECADES]
        off = [abs(size / expected - 1) for (_, size), (_, expected) in zip(found, theory, strict=True)]
        metrics[f"off {name}"] = max(off) / rounding
        metrics[f"far {name}"] = rms_difference(norm(FAR * eps**0.5 * x), norm(x))
        metrics[f"near {name}"] = rms_difference(norm(eps**0.5 / FAR * x), norm(x))
        metrics[f"size {name}"], metrics[f"theory {name}"] = found, theory
    return metrics


def _size(k: float, eps: float) -> float:
    """What theory says of the output's size for an input of size k."""
    return k / math.sqrt(k * k + eps)


def questions(budget: Budget) -> list[Question]:
    def at_most(metric: str, text: str, threshold: float = ROUNDINGS, unit: str = "roundings") -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(metrics[metric]) for metrics in runs.values())

        return Question(text, effect, threshold=threshold, side="below", unit=unit, every_seed=True)

    def at_least(metric: str, text: str, threshold: float) -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(metrics[metric]) for metrics in runs.values())

        return Question(text, effect, threshold=threshold, side="above", every_seed=True)

    asked = [
        at_most("scaled", f"eps 0: RMSNorm(kx) is RMSNorm(x), for k from {FACTORS[0]:g} to {FACTORS[-1]:g}"),
        at_most("turned", "eps 0: RMSNorm(-x) is -RMSNorm(x): the sign of k is not ignored"),
        at_most("size", "eps 0: the rms of every token that comes out is 1"),
    ]
    for name in EPSILONS:
        asked += [
            at_most(f"off {name}", f"eps {name}: what comes out has the size k / sqrt(k² + eps)"),
            at_most(f"far {name}", f"eps {name}: at {FAR:g} sqrt(eps) it still is RMSNorm(x), nearly", NEARLY, ""),
            at_least(f"near {name}", f"eps {name}: at a tenth of sqrt(eps) it is not", DIFFERENT),
        ]
    return [
        *asked,
        at_most("shapes", "no shape is changed (shapes that were)", 0.5, ""),
        at_most("moved_layer", "LayerNorm ignores a constant added to every feature, up to 100 times their size"),
        at_least("moved_rms", "RMSNorm does not ignore a constant of the features' size", DIFFERENT),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    variant = "normscope float32"
    labels = {"usual": "torch's usual eps, 1.2e-7", "1e-5": "eps 1e-5"}

    def pairs(change: Callable[[float], float], up_to: float = DECADES[-1]) -> list[ChartLine]:
        lines = []
        for (name, label), colour in zip(labels.items(), "ab", strict=True):
            found, theory = (
                [(k, change(size)) for k, size in runs.curve(variant, f"{metric} {name}") if k <= up_to]
                for metric in ("size", "theory")
            )
            lines += [
                ChartLine(label, found, colour, connected=False),
                ChartLine("theory", theory, colour, dashed=True),
            ]
        return lines

    without = ChartLine("eps 0", runs.curve(variant, "size_by_factor"), "c", connected=False)
    moved = runs.curve(variant, "rms_by_constant")
    # (x + c) / s - x with s^2 = 1 + c^2, for features of mean 0 and size 1
    theory = [(c, ((1 / (1 + c * c) ** 0.5 - 1) ** 2 + c * c / (1 + c * c)) ** 0.5) for c, _ in moved]
    return [
        Chart(
            "RMSNorm: what comes out when x is k times as large",
            "k",
            "output's rms",
            [without, *pairs(lambda size: size)],
            log_x=True,
            log_y=True,
        ),
        Chart(
            "How far that is from size 1",
            "k",
            "1 - output's rms",
            pairs(lambda size: abs(1 - size), up_to=1.0),  # beyond, rounding is all that is left
            log_x=True,
            log_y=True,
        ),
        Chart(
            "How far a constant moves the output",
            "constant added to every feature, in their size",
            "change (rms)",
            [
                ChartLine("RMSNorm", moved, "a", connected=False),
                ChartLine("RMSNorm, theory", theory, "a", dashed=True),
                ChartLine("LayerNorm", runs.curve(variant, "layer_by_constant"), "b", dots=True),
            ],
            log_x=True,
        ),
    ]


CLAIM = Claim(
    number=8,
    name="norm-invariances",
    kind="exact",
    statement=(
        "RMSNorm(kx) = RMSNorm(x) for k > 0 as long as kx is far above the root of eps, and what comes out then has an "
        "rms of 1 and the shape that went in; LayerNorm ignores a constant added to every feature, which RMSNorm does "
        "not."
    ),
    source=(
        "Notes on residuals and on normalization; Zhang and Sennrich 2019, “Root Mean Square Layer Normalization”; Ba, "
        "Kiros and Hinton 2016, “Layer Normalization”."
    ),
    design=(
        "Random tokens of 256 features and size 1, scaled and moved, through normscope's layers and torch's at their "
        "start, in float32 and float64. The identities of RMSNorm are asked of it without eps, over 24 decades of k; "
        "what eps does to them is asked by itself, of torch's usual one, which is the type's own rounding, and of the "
        "1e-5 that normscope's models have."
    ),
    rule=(
        f"Supported if, for every seed, library and type: no number of an identity is off by {ROUNDINGS:g} roundings "
        f"of its type; with eps the output's size is as theory has it, to the same, and it is RMSNorm(x) within "
        f"{NEARLY:.0%} at {FAR:g} times the root of eps, but off by more than {DIFFERENT:g} at a tenth of the root; "
        f"and a constant as large as the features moves RMSNorm's output by more than {DIFFERENT:g}."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "What a norm hands to a branch is of one size, however large the stream has grown, and a scale that "
            "multiplies all of its input has no effect. That holds for the whole input only: one branch's weights, "
            "scaled, change that branch's share of a residual stream, and no norm takes this away. And it ends where "
            "eps begins: signals below its root, 0.003 with an eps of 1e-5, are not brought to size 1, and at thirty "
            "times that half a thousandth is still missing. Whoever replaces LayerNorm by RMSNorm lets the features' "
            "common mean pass."
        ),
        "contradicted": "A norm lets something pass that it is said to ignore: look below for which, and at what size.",
        "inconclusive": "The differences are too close to rounding to tell.",
    },
    remark=(
        "It is often written for any k, but a negative one turns the sign of the output, and a small one meets eps."
    ),
    revised="its k began where eps could not be seen",
)
