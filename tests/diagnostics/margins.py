"""How far healthy models stay from each threshold, and how far beyond it the faults are.

A figure is asked for by loosening the threshold until every model has the finding, and reading what it says.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

from normscope.diagnostics.findings import (
    attention,
    depth,
    loss,
    norm_eps,
    norm_scope,
    outliers,
    residual,
    updates,
    warmup,
)
from normscope.diagnostics.findings import dead_units as units
from normscope.diagnostics.findings import exploded_weights as growth
from normscope.diagnostics.findings import initial_weights as weights
from normscope.diagnostics.findings import running_statistics as running
from normscope.diagnostics.findings.base import Finder, Finding
from normscope.diagnostics.findings.record_view import View
from normscope.diagnostics.record import XrayRecord


@dataclass(frozen=True)
class Measure:
    """A figure that decides on a finding.

    Args:
        finding: its name.
        figure: the figure's name.
        home: the module that has the threshold.
        finder: what makes the finding.
        threshold: the threshold's name.
        loose: constants, and values at which every model has the finding.
        below: whether small figures are at fault, and not large ones.
        both_ways: whether a figure and one over it are alike at fault.
    """

    finding: str
    figure: str
    home: ModuleType
    finder: Finder
    threshold: str
    loose: dict[str, float] = field(default_factory=dict)
    below: bool = False
    both_ways: bool = False

    @property
    def limit(self) -> float:
        return float(getattr(self.home, self.threshold))

    def nearness(self, value: float) -> float:
        """Over 1 is at fault; 0.5 is half way there, as a ratio."""
        if self.both_ways:
            value = max(value, 1 / value) if value > 0 else math.inf
        if self.below:
            return self.limit / value if value > 0 else math.inf
        return value / self.limit

    def worst(self, record: XrayRecord) -> float | None:
        """The figure that is nearest to the threshold in this record; None if it has none."""
        with _loosened(self.home, self.loose):
            found = self.finder(View(record))
        return self.worst_of([f for f in found if f.severity != "note" or self.finding == "outlier-features"])

    def worst_of(self, found: list[Finding]) -> float | None:
        figures = [f.figures.get(self.figure) for f in found if f.name == self.finding]
        return max((value for value in figures if isinstance(value, float | int)), key=self.nearness, default=None)


@contextlib.contextmanager
def _loosened(home: ModuleType, values: dict[str, float]) -> Iterator[None]:
    before = {name: getattr(home, name) for name in values}
    try:
        for name, value in values.items():
            setattr(home, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(home, name, value)


_ANY = {"FACTOR": 1.0, "STEADY": 1.0}

MEASURES = [
    *(
        Measure(f"{way}-{what}", "total", depth, depth.depth_trends, "FACTOR", _ANY, both_ways=True)
        for what in ("activations", "gradients")
        for way in ("vanishing", "exploding")
    ),
    Measure("dead-units", "share", units, units.idle_units, "DEAD_SHARE", {"DEAD_NOTED": 0.0, "DEAD_SHARE": 0.0}),
    Measure("saturated-units", "values", units, units.idle_units, "STUCK_VALUES", {"STUCK_VALUES": 0.0}),
    Measure(
        "attention-collapsed", "least sharp head", attention, attention.attention_shape, "COLLAPSED",
        {"COLLAPSED": 0.0, "LOST_SPREAD": 0.0},
    ),
    Measure(
        "attention-collapsed", "spread of scores", attention, attention.attention_shape, "LOST_SPREAD",
        {"COLLAPSED": 0.0, "LOST_SPREAD": 0.0},
    ),
    Measure(
        "attention-uniform", "entropy below 1 by", attention, attention.attention_shape, "UNIFORM",
        {"COLLAPSED": 2.0, "UNIFORM": 1.0}, below=True,
    ),
    Measure(
        "stream-grows", "growth of the second half", residual, residual.stream_growth, "SECOND_HALF",
        {"SECOND_HALF": 0.0},
    ),
    Measure("update-too-large", "update / weight", updates, updates.update_sizes, "TOO_LARGE", {"TOO_LARGE": 0.0}),
    Measure("update-too-large", "change of gain", updates, updates.update_sizes, "FELT", {"FELT": 0.0}),
    Measure(
        "update-too-small", "update / weight", updates, updates.update_sizes, "ROUNDING", {"ROUNDING": math.inf},
        below=True,
    ),
    Measure(
        "update-too-small", "update / middle", updates, updates.update_sizes, "LAGGING",
        {"LAGGING": math.inf, "LAGGING_STEP": math.inf}, below=True,
    ),
    Measure("loss-above-chance", "excess", loss, loss.loss_above_chance, "EXCESS", {"EXCESS": -math.inf}),
    Measure(
        "eps-too-large", "eps / variance", norm_eps, norm_eps.eps_sizes, "OUTWEIGHED", {"NOTED": 0.0, "OUTWEIGHED": 0.0}
    ),
    Measure(
        "norm-of-few-values", "values", norm_scope, norm_scope.starved_norm, "FEW_VALUES", {"FEW_VALUES": math.inf},
        below=True,
    ),
    Measure("norm-over-padding", "padding", norm_scope, norm_scope.norm_over_padding, "PADDED", {"PADDED": 0.0}),
    Measure("post-norm-without-warmup", "post-norm additions", warmup, warmup.cold_start, "DEEP", {"DEEP": 0.0}),
    Measure("post-norm-without-warmup", "rate", warmup, warmup.cold_start, "RATE", {"RATE": 0.0}),
    Measure("weights-off-centre", "mean / rms", weights, weights.weight_starts, "OFF_CENTRE", {"OFF_CENTRE": 0.0}),
    Measure(
        "gain-off-theory", "predicted gain", weights, weights.weight_starts, "LARGEST_GAIN",
        {"LARGEST_GAIN": 0.0, "OFF_CENTRE": math.inf},
    ),
    Measure(
        "gain-off-theory", "measured / predicted", weights, weights.weight_starts, "ALIGNED",
        {"ALIGNED": 0.0, "OFF_CENTRE": math.inf},
    ),
    Measure("weights-grown", "predicted gain", growth, growth.weights_grown, "LARGEST_GAIN", {"LARGEST_GAIN": 0.0}),
    Measure("odd-weights", "ratio", weights, weights.weight_starts, "ODD", {"ODD": 1.0}, both_ways=True),
    Measure("outlier-features", "int8 error", outliers, outliers.outlier_features, "LOST", {"LOST": 0.0}),
    Measure("running-statistics-off", "mean off by", running, running.running_drift, "SHIFTED", {"SHIFTED": 0.0}),
    Measure("running-statistics-off", "variance off by", running, running.running_drift, "SCALED", {"SCALED": 0.0}),
]  # fmt: skip
