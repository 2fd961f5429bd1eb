"""What eps is for: constant inputs, half precision, and its effect on other inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, in_both, rms

TOKENS, WIDTH = 16, 768
EPSILONS = {"0": 0.0, "1e-20": 1e-20, "1e-5": 1e-5, "0.1": 0.1}
VARIANCES = [10.0**power for power in range(-10, 7)]
PLAIN = "plain code"
IMPLEMENTATIONS = (*LIBRARIES, PLAIN)
HALVES = ("float16", "bfloat16")
DTYPES = ("float32", *HALVES)
ALL = 0.999
"""The required share of constant tokens."""
LOST = 0.5
"""A protection that fails for most tokens is none."""
NOTICED = 0.01
"""Deviation of the output's rms from 1: half precision itself rounds by up to 0.4%."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {f"{by} {dtype}": {"implementation": by, "dtype": dtype} for by in IMPLEMENTATIONS for dtype in DTYPES}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Pass constant tokens, and random ones of every variance, through LayerNorm with each eps."""
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    rng = torch.Generator().manual_seed(seed)
    constant = torch.randn(TOKENS, 1, generator=rng).expand(TOKENS, WIDTH).to(dtype)
    z = torch.randn(TOKENS, WIDTH, generator=rng)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0)
    metrics: dict[str, Any] = {}
    for name, eps in EPSILONS.items():
        norm = _norm(settings["implementation"], eps, dtype)
        flat = norm(constant)
        metrics[f"broken {name}"] = (~flat.isfinite()).any(1).float().mean().item()
        metrics[f"largest {name}"] = flat.double().nan_to_num(0.0).abs().max().item()
        metrics[f"kept {name}"] = (flat.isfinite() & (flat.abs() < NOTICED)).all(1).float().mean().item()
        sizes = [(variance, rms(norm((variance**0.5 * z).to(dtype)))) for variance in VARIANCES]
        metrics[f"sizes {name}"] = [(variance, size) for variance, size in sizes if size < float("inf")]
        metrics[f"off {name}"] = abs(dict(sizes)[1.0] - 1)
    return metrics


def _norm(implementation: str, eps: float, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    if implementation == PLAIN:
        return lambda x: _layer_norm(x, eps)
    layer: Any = LIBRARIES[implementation].LayerNorm(WIDTH, eps=eps, elementwise_affine=False, dtype=dtype)
    return lambda x: layer(x)


def _layer_norm(x: Tensor, eps: float) -> Tensor:
    """The textbook formula; every operation is in the dtype of x."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(-1, keepdim=True) + eps)


def questions(budget: lab.Budget) -> list[lab.Question]:
    def lost(implementation: str, dtype: str) -> lab.Question:
        layer = PLAIN if implementation == PLAIN else f"{implementation}'s layer"
        text = f"1e-20 protects nothing in {dtype}, {layer}: share of constant tokens that become zeros"
        return lab.largest(text, "kept 1e-20", LOST, [f"{implementation} {dtype}"])

    broken = "without eps every constant token becomes NaN, in the layers, in float32"
    return [
        lab.smallest(broken, "broken 0", ALL, in_both("float32")),
        lab.smallest("and in plain code too, in float32", "broken 0", ALL, [f"{PLAIN} float32"]),
        lab.smallest("with 1e-5 every constant token becomes zeros, in every dtype", "kept 1e-5", ALL),
        *(lost(by, dtype) for by in (PLAIN, "torch", "normscope") for dtype in HALVES),
        lab.smallest("0.1 distorts: variance 1 comes out with another rms", "off 0.1", NOTICED),
        lab.largest("1e-5 does not: variance 1 comes out with rms 1", "off 1e-5", NOTICED),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def dots(label: str, points: list[tuple[float, float]], position: int, of: int) -> lab.ChartLine:
        shift = 0.1 * (position - (of - 1) / 2)
        return lab.ChartLine(label, [(at + shift, y) for at, y in points], lab.COLORS[position], connected=False)

    theory = {name: [(v, (v / (v + eps)) ** 0.5) for v in VARIANCES] for name, eps in EPSILONS.items() if eps}
    found = {f"eps {name}": (runs.curve(f"{PLAIN} float16", f"sizes {name}"), theory[name]) for name in theory}
    sizes = lab.against_theory(found)
    shown = [*(f"{by} {dtype}" for by in IMPLEMENTATIONS for dtype in HALVES), f"{PLAIN} float32"]
    kept = [
        dots(variant, [(at, runs.mean(variant, f"kept {name}")) for at, name in enumerate(EPSILONS)], i, len(shown))
        for i, variant in enumerate(shown)
    ]
    largest = []
    for i, by in enumerate(IMPLEMENTATIONS):
        variants = enumerate(f"{by} {dtype}" for dtype in DTYPES)
        finite = [(at, variant) for at, variant in variants if max(runs.values(variant, "broken 1e-20")) == 0]
        largest.append(dots(by, [(at, max(runs.values(name, "largest 1e-20"))) for at, name in finite], i, 3))
    title = "Largest output of a constant token at 1e-20 (no dot: NaN)"
    plain, axes = "Plain code in float16 (no dot: NaN or 0)", ("variance of x", "rms of the output")
    return [
        lab.Chart("Constant tokens that become zeros", "eps", "share", kept, categories=[*EPSILONS], y_from_zero=True),
        lab.Chart(title, "dtype", "should be 0", largest, categories=DTYPES, y_from_zero=True),
        lab.Chart(plain, *axes, sizes, log_x=True, log_y=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
