"""What eps is for: constant inputs, half precision, and what it does to the others."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import LIBRARIES, rms
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart, ChartLine

TOKENS, WIDTH = 16, 768
EPSILONS = {"0": 0.0, "1e-20": 1e-20, "1e-5": 1e-5, "0.1": 0.1}
VARIANCES = [10.0**power for power in range(-10, 7)]
HAND = "by hand"
HALVES = ("float16", "bfloat16")
TYPES = ("float32", *HALVES)
ALL = 0.999
"""The share of constant tokens of which something is said."""
LOST = 0.5
"""A protection that fails more often than not is none."""
NOTICED = 0.01
"""Of the output's size, which should be 1: half precision itself rounds it by up to 0.4%."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {f"{whose} {dtype}": {"whose": whose, "dtype": dtype} for whose in (*LIBRARIES, HAND) for dtype in TYPES}


def measure(settings: Settings, seed: int) -> Metrics:
    """Constant tokens, and random ones of every variance, through LayerNorm with each eps."""
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    chance = torch.Generator().manual_seed(seed)
    constant = torch.randn(TOKENS, 1, generator=chance).expand(TOKENS, WIDTH).to(dtype)
    z = torch.randn(TOKENS, WIDTH, generator=chance)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0)
    metrics: dict[str, Any] = {}
    for name, eps in EPSILONS.items():
        norm = _norm(settings["whose"], eps, dtype)
        flat = norm(constant)
        metrics[f"broken {name}"] = (~flat.isfinite()).any(1).float().mean().item()
        metrics[f"largest {name}"] = flat.double().nan_to_num(0.0).abs().max().item()
        metrics[f"kept {name}"] = (flat.isfinite() & (flat.abs() < NOTICED)).all(1).float().mean().item()
        sizes = [(variance, rms(norm((variance**0.5 * z).to(dtype)))) for variance in VARIANCES]
        # What is not finite has no place in a picture.
        metrics[f"sizes {name}"] = [(variance, size) for variance, size in sizes if size < float("inf")]
        metrics[f"off {name}"] = abs(dict(sizes)[1.0] - 1)
    return metrics


def _norm(whose: str, eps: float, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    if whose == HAND:
        return lambda x: _by_hand(x, eps)
    layer: Any = LIBRARIES[whose].LayerNorm(WIDTH, eps=eps, elementwise_affine=False, dtype=dtype)
    return lambda x: layer(x)


def _by_hand(x: Tensor, eps: float) -> Tensor:
    """As one would write it; every step has the type of x."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)


def questions(budget: Budget) -> list[Question]:
    def least(text: str, metric: str, those: list[str], threshold: float = ALL) -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(runs[name][metric]) for name in those)

        return Question(text, effect, threshold=threshold, side="above", every_seed=True)

    def lost(whose: str, dtype: str) -> Question:
        def kept(runs: BySeed) -> float:
            return float(runs[f"{whose} {dtype}"]["kept 1e-20"])

        layer = {HAND: "written by hand"}.get(whose, f"{whose}'s layer")
        text = f"1e-20 protects nothing in {dtype}, {layer}: share of constant tokens that become zeros"
        return Question(text, kept, threshold=LOST, side="below", every_seed=True)

    def largest_error(runs: BySeed) -> float:
        return max(float(metrics["off 1e-5"]) for metrics in runs.values())

    everything = [f"{whose} {dtype}" for whose in (*LIBRARIES, HAND) for dtype in TYPES]
    layers = [f"{library} float32" for library in LIBRARIES]
    return [
        least("without eps every constant token becomes NaN, in the layers, in float32", "broken 0", layers),
        least("and it does so by hand too, in float32", "broken 0", [f"{HAND} float32"]),
        least("with 1e-5 every constant token becomes zeros, in every type", "kept 1e-5", everything),
        *(lost(whose, dtype) for whose in (HAND, "torch", "normscope") for dtype in HALVES),
        least("0.1 distorts: of variance 1 comes another size", "off 0.1", everything, NOTICED),
        Question("1e-5 does not: of variance 1 comes size 1", largest_error, NOTICED, "below", every_seed=True),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def sizes(variant: str, title: str) -> Chart:
        lines = []
        for (name, eps), colour in zip(list(EPSILONS.items())[1:], "abc", strict=True):
            theory = [(variance, (variance / (variance + eps)) ** 0.5) for variance in VARIANCES]
            lines.append(ChartLine(f"eps {name}", runs.curve(variant, f"sizes {name}"), colour, connected=False))
            lines.append(ChartLine(f"{name}, theory", theory, colour, dashed=True))
        return Chart(title, "variance of x", "output's rms", lines, log_x=True, log_y=True)

    def dots(label: str, shares: list[tuple[float, float]], place: int, of: int) -> ChartLine:
        beside = 0.1 * (place - (of - 1) / 2)
        return ChartLine(label, [(at + beside, share) for at, share in shares], COLORS[place], connected=False)

    shown = [
        *(f"{whose} {dtype}" for whose in (*LIBRARIES, HAND) for dtype in HALVES),
        f"{HAND} float32",
    ]
    kept = [
        dots(variant, [(at, runs.mean(variant, f"kept {name}")) for at, name in enumerate(EPSILONS)], i, len(shown))
        for i, variant in enumerate(shown)
    ]
    largest = []
    for i, whose in enumerate((*LIBRARIES, HAND)):
        finite = [(at, f"{whose} {dtype}") for at, dtype in enumerate(TYPES)]
        finite = [(at, variant) for at, variant in finite if max(runs.values(variant, "broken 1e-20")) == 0]
        largest.append(dots(whose, [(at, max(runs.values(name, "largest 1e-20"))) for at, name in finite], i, 3))
    title = "The largest of their numbers at 1e-20 (no dot: NaN)"
    return [
        Chart(
            "Constant tokens that come out as zeros", "eps", "share", kept, categories=list(EPSILONS), y_from_zero=True
        ),
        Chart(title, "type", "should be 0", largest, categories=list(TYPES), y_from_zero=True),
        sizes(f"{HAND} float16", "By hand in float16 (no dot: NaN or zero)"),
    ]


CLAIM = Claim(
    number=12,
    name="eps-and-precision",
    kind="exact",
    statement=(
        "Without eps a constant input gives NaN; 1e-5 survives it, 1e-20 vanishes in half precision and "
        "protects nothing, and 0.1 distorts."
    ),
    source="Notes on LayerNorm.",
    design=(
        "Constant tokens and random ones of 768 features through LayerNorm with each eps: normscope's, torch's, and "
        "written by hand, in float32 and in both half precisions, float16 and bfloat16."
    ),
    rule=(
        f"Supported if, for every seed: without eps all constant tokens become NaN in float32, in the layers and by "
        f"hand; with 1e-5 all become zeros in every type, and of variance 1 comes size 1 within {NOTICED:.0%}; with "
        f"1e-20 fewer than half become zeros in each half precision, by hand, in torch's layer and in normscope's; and "
        f"with 0.1 the size is off by more than {NOTICED:.0%}."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": "Use 1e-5: smaller ones protect nothing in half precision, larger ones change what comes out.",
        "contradicted": (
            "Keep an eps of about 1e-5, though not all reasons given for it hold. Without eps a constant gives NaN "
            "only if its mean comes out exactly; where the mean is rounded, as by hand in float32, its rounding error "
            "is divided by its own size, comes out as size 1, and nobody notices. And whether 1e-20 protects depends "
            "on the norm's steps as much as on the type: float16 cannot hold it, bfloat16 and float32 can. A layer "
            "that computes in float32 and takes the mean away before it divides gives zeros. One that divides x and "
            "its mean by the root of eps first, and subtracts then, as torch's does in half precision, is left with "
            "their rounding: large numbers, which are finite and so are worse than NaN. The first two charts say which "
            "is which."
        ),
        "inconclusive": "The figures are too near to the lines to tell.",
    },
    remark=(
        "The notes say that half precision rounds 1e-20 to zero, of FP16 and BF16 alike. Only float16 does: bfloat16 "
        "has the range of float32. But a type that can hold an eps is not yet a layer that is protected by it."
    ),
    revised="it counted NaN, not what is kept",
)
