"""RMSNorm is invariant to the scale of its input, LayerNorm also to a constant offset."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, library_variants, max_difference, rms, rms_difference

WIDTH, TOKENS = 256, 64
SHAPES = ((7,), (5, 7), (2, 3, 7), (2, 1, 3, 7))
FACTORS = [10.0**power for power in range(-12, 13)]
"""Their squares are representable in float32; beyond, the dtype fails, not the identity."""
CONSTANTS = (-100.0, -1.0, 0.1, 1.0, 10.0, 100.0)
DECADES = [10 ** (power / 2) for power in range(-12, 13)]
EPSILONS: Mapping[str, float | None] = {"default": None, "1e-5": 1e-5}
"""None is RMSNorm's default, the machine epsilon of the dtype; 1e-5 is what normscope's models use."""
MAX_ULPS = 100.0
"""Allowed error in units of the dtype's eps. The operations of a norm and outputs of up to 4 add up to about ten, and
another processor may order them differently; an eps of 1e-5 would already show at k = 1."""
FAR, NEARLY = 10.0, 0.01
"""Multiples of sqrt(eps), and the tolerated deviation of the output there: eps takes 0.5% of it."""
DIFFERENT = 0.1
"""A tenth of the output's rms: no model would ignore it."""


def variants(budget: lab.Budget) -> lab.Variants:
    return library_variants({dtype: {"dtype": dtype} for dtype in ("float32", "float64")})


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Pass random tokens, unchanged, scaled and shifted by a constant, through RMSNorm and LayerNorm."""
    library: Any = LIBRARIES[settings["library"]]
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    ulp = torch.finfo(dtype).eps
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=rng, dtype=dtype)
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt()  # rms 1, so that k is the rms a norm sees
    exact, layer_norm = library.RMSNorm(WIDTH, eps=0.0, dtype=dtype), library.LayerNorm(WIDTH, dtype=dtype)
    y = exact(x)
    sizes = y.detach().double().square().mean(dim=-1).sqrt()
    others = [torch.randn(shape, generator=rng, dtype=dtype) for shape in SHAPES]
    shifted = [(c, max_difference(layer_norm(x + c), layer_norm(x))) for c in CONSTANTS]
    constants = [c for c in DECADES if 1e-3 <= c <= 1e3]
    metrics: dict[str, Any] = {
        "scaled": max(max_difference(exact(k * x), y) for k in FACTORS) / ulp,
        "turned": max_difference(exact(-x), -y) / ulp,
        "size": (sizes - 1).abs().max().item() / ulp,
        "shapes": sum(library.RMSNorm(7, dtype=dtype)(other).shape != other.shape for other in others),
        # Adding c to x already rounds x by a factor of c more, before any norm sees it.
        "moved_layer": max(change / max(1.0, abs(c)) for c, change in shifted) / ulp,
        "moved_rms": rms_difference(exact(x + 1), y),
        "size_by_factor": [(k, rms(exact(k * x))) for k in DECADES],
        "layer_by_constant": [(c, rms_difference(layer_norm(x + c), layer_norm(x))) for c in constants],
        "rms_by_constant": [(c, rms_difference(exact(x + c), y)) for c in constants],
    }
    for name, given in EPSILONS.items():
        norm, eps = library.RMSNorm(WIDTH, eps=given, dtype=dtype), ulp if given is None else given
        found = [(k, rms(norm(k * x))) for k in DECADES]
        theory = [(k, k / math.sqrt(k * k + eps)) for k in DECADES]
        off = [abs(size / expected - 1) for (_, size), (_, expected) in zip(found, theory, strict=True)]
        metrics[f"off {name}"] = max(off) / ulp
        metrics[f"far {name}"] = rms_difference(norm(FAR * eps**0.5 * x), norm(x))
        metrics[f"near {name}"] = rms_difference(norm(eps**0.5 / FAR * x), norm(x))
        metrics[f"size {name}"], metrics[f"theory {name}"] = found, theory
    return metrics


def questions(budget: lab.Budget) -> list[lab.Question]:
    def identity(metric: str, text: str) -> lab.Question:
        return lab.largest(text, metric, MAX_ULPS, unit="ulp")

    asked = [
        identity("scaled", f"eps 0: RMSNorm(kx) is RMSNorm(x), for k from {FACTORS[0]:g} to {FACTORS[-1]:g}"),
        identity("turned", "eps 0: RMSNorm(-x) is -RMSNorm(x): the sign of k is not ignored"),
        identity("size", "eps 0: the rms of every output token is 1"),
    ]
    for name in EPSILONS:
        asked.append(identity(f"off {name}", f"eps {name}: the output has an rms of k / sqrt(k² + eps)"))
        close = f"eps {name}: at {FAR:g} sqrt(eps) it is still close to RMSNorm(x)"
        asked.append(lab.largest(close, f"far {name}", NEARLY))
        asked.append(lab.smallest(f"eps {name}: at a tenth of sqrt(eps) it is not", f"near {name}", DIFFERENT))
    return [
        *asked,
        lab.largest("no shape changes (number of shapes that did)", "shapes", 0.5),
        identity("moved_layer", "LayerNorm ignores a constant added to every feature, up to 100 times their rms"),
        lab.smallest("RMSNorm does not ignore a constant equal to the features' rms", "moved_rms", DIFFERENT),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    variant = "normscope float32"
    labels = {"default": "torch's default eps, 1.2e-7", "1e-5": "eps 1e-5"}

    def pairs(change: Callable[[float], float], up_to: float = DECADES[-1]) -> list[lab.ChartLine]:
        def points(metric: str) -> list[tuple[float, float]]:
            return [(k, change(size)) for k, size in runs.curve(variant, metric) if k <= up_to]

        return lab.against_theory(
            {label: (points(f"size {name}"), points(f"theory {name}")) for name, label in labels.items()}
        )

    without = lab.ChartLine("eps 0", runs.curve(variant, "size_by_factor"), "c", connected=False)
    moved = runs.curve(variant, "rms_by_constant")
    # (x + c) / s - x with s^2 = 1 + c^2, for features of mean 0 and rms 1
    theory = [(c, ((1 / (1 + c * c) ** 0.5 - 1) ** 2 + c * c / (1 + c * c)) ** 0.5) for c, _ in moved]
    shift = [
        *lab.against_theory({"RMSNorm": (moved, theory)}),
        lab.ChartLine("LayerNorm", runs.curve(variant, "layer_by_constant"), "b", dots=True),
    ]
    outputs = [without, *pairs(lambda size: size)]
    deviations = pairs(lambda size: abs(1 - size), up_to=1.0)  # beyond, only rounding error is left
    return [
        lab.Chart("RMSNorm of kx, for x of rms 1", "k", "rms of the output", outputs, log_x=True, log_y=True),
        lab.Chart("Deviation of the output's rms from 1", "k", "1 - rms", deviations, log_x=True, log_y=True),
        lab.Chart("Effect of a constant offset", "offset / rms of the features", "change (rms)", shift, log_x=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
