"""A truncated normal has a smaller standard deviation than the normal it was truncated from."""

import math

import torch
from torch import nn

from normscope.blocks.initialization import Initialization, truncated_normal_std
from normscope.lab import toolkit as lab

CUTS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
CLAIMED = {2.0: 0.880, 3.0: 0.987}
STD = 0.02
"""The requested standard deviation, as in GPT-2."""
TOLERANCE = 0.005
"""Of a standard deviation: sampling noise is about 0.1%, truncation at three sigma more than 1%."""
ROUNDING = 1e-6


def variants(budget: lab.Budget) -> lab.Variants:
    size = budget.pick(quick=512, full=2048)
    return {name: {"drawn_by": name, "size": size} for name in ("normscope", "corrected", "torch", "torch defaults")}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Draw weights at several cuts; measure their standard deviation and maximum relative to what was requested."""
    torch.manual_seed(seed)
    ratios, beyond = [], 0.0
    for cut in CUTS:
        weight = torch.empty(settings["size"], settings["size"])
        _draw(weight, settings["drawn_by"], cut)
        ratios.append((cut, weight.double().std().item() / STD))
        beyond = max(beyond, weight.abs().max().item() / (cut * STD))
    formula_error = max(abs(truncated_normal_std(cut) - by_integration(cut)) for cut in CUTS)
    return {"ratios": ratios, "largest": beyond, "formula_error": formula_error}


def _draw(weight: torch.Tensor, drawn_by: str, cut: float) -> None:
    if drawn_by == "torch":
        nn.init.trunc_normal_(weight, std=STD, a=-cut * STD, b=cut * STD)
    elif drawn_by == "torch defaults":
        nn.init.trunc_normal_(weight, std=STD)
    else:
        Initialization(drawn_by, lambda *_: STD, truncate_at=cut, corrected=drawn_by == "corrected").fill_(weight)


def by_integration(cut: float) -> float:
    """The standard deviation of a standard normal truncated at ±cut, from its density alone."""
    x = torch.linspace(-cut, cut, 20_001, dtype=torch.float64)
    density = (-x * x / 2).exp()
    return math.sqrt(torch.trapezoid(x * x * density, x).item() / torch.trapezoid(density, x).item())


def questions(budget: lab.Budget) -> list[lab.Question]:
    def off(variant: str, text: str, *, shrinks: bool) -> lab.Question:
        expected = {cut: by_integration(cut) if shrinks else 1.0 for cut in CUTS}
        return lab.largest(text, lambda run: _error(run, expected), TOLERANCE, [variant])

    named = " and ".join(f"{ratio:.3f} at {cut:g} sigma" for cut, ratio in CLAIMED.items())
    defaults = f"torch's trunc_normal_ with a std of {STD} and default bounds: the standard deviation does not shrink"
    beyond = "no weight of normscope or torch lies beyond the cut"
    return [
        lab.largest(f"the factor is {named}", lambda run: _error(run, CLAIMED), TOLERANCE, ["normscope"]),
        off("normscope", "normscope: the standard deviation matches theory at every cut", shrinks=True),
        off("torch", "torch's trunc_normal_ with explicit bounds: the same", shrinks=True),
        off("corrected", "normscope, corrected: the standard deviation is the requested one", shrinks=False),
        off("torch defaults", defaults, shrinks=False),
        lab.largest("normscope's formula matches the integrated density", "formula_error", ROUNDING, ["normscope"]),
        lab.largest(beyond, lambda run: run["largest"] - 1, ROUNDING, ["normscope", "torch"]),
    ]


def _error(run: lab.Metrics, expected: dict[float, float]) -> float:
    measured: dict[float, float] = dict(run["ratios"])
    return max(abs(measured[cut] - ratio) for cut, ratio in expected.items())


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    steps = [1 + 0.05 * i for i in range(61)]
    lines = [lab.ChartLine("theory", [(cut, by_integration(cut)) for cut in steps], "d", dashed=True)]
    for name, color, offset in (("normscope", "a", -2), ("torch", "b", 2), ("corrected", "c", 0)):
        label = "normscope, corrected" if name == "corrected" else name
        lines.append(lab.ChartLine(label, runs.curve(name, "ratios"), color, connected=False, offset=offset))
    title, levels = "Standard deviation after truncation", [("requested", 1.0)]
    return [lab.Chart(title, "truncated at (sigma)", "measured / requested", lines, reference_lines=levels)]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
