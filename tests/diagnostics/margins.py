"""How far healthy models are from each threshold, and how far the faults exceed it.

To read a value, loosen the threshold until every model has the finding, and take the value from its evidence.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

from normscope.diagnostics.findings import (
    attention,
    cross_entropy,
    depth,
    norms,
    optimizer_steps,
    outlier_weights,
    units,
    weights,
)
from normscope.diagnostics.findings.finding import Check, Finding, RecordView
from normscope.diagnostics.record import XrayRecord


@dataclass(frozen=True)
class Measure:
    """A measured value that a finding compares with a threshold.

    Args:
        finding: name of the finding.
        figure: name of the value in the finding's evidence.
        home: module that defines the threshold.
        check: check that produces the finding.
        threshold: name of the threshold's constant.
        loose: constants, and values at which every model has the finding.
        below: whether values below the threshold are faults, rather than those above it.
        two_sided: whether x and 1/x are equally faulty.
    """

    finding: str
    figure: str
    home: ModuleType
    check: Check
    threshold: str
    loose: dict[str, float] = field(default_factory=dict)
    below: bool = False
    two_sided: bool = False

    @property
    def limit(self) -> float:
        return float(getattr(self.home, self.threshold))

    def nearness(self, value: float) -> float:
        """Ratio of the value to the threshold; above 1 is a fault."""
        if self.two_sided:
            value = max(value, 1 / value) if value > 0 else math.inf
        if self.below:
            return self.limit / value if value > 0 else math.inf
        return value / self.limit

    def worst(self, record: XrayRecord) -> float | None:
        """The value closest to the threshold in this record, or None."""
        with _loosened(self.home, self.loose):
            found = list(self.check(RecordView(record)))
        return self.worst_of([f for f in found if f.severity != "note" or self.finding == "outlier-features"])

    def worst_of(self, found: list[Finding]) -> float | None:
        figures = [f.evidence.get(self.figure) for f in found if f.name == self.finding]
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


_ANY = {"MAX_FACTOR": 1.0, "MIN_STEADY_FACTOR": 1.0}

MEASURES = [
    *(
        Measure(f"{way}-{what}", "total factor", depth, depth.check_depth, "MAX_FACTOR", _ANY, two_sided=True)
        for what in ("activations", "gradients")
        for way in ("vanishing", "exploding")
    ),
    Measure(
        "dead-units", "fraction", units, units.check_units, "DEAD_WARNING", {"DEAD_NOTE": 0.0, "DEAD_WARNING": 0.0}
    ),
    Measure(
        "saturated-units", "values", units, units.check_units, "MAX_SATURATED_VALUES", {"MAX_SATURATED_VALUES": 0.0}
    ),
    Measure(
        "attention-collapsed",
        "least peaked head",
        attention,
        attention.check_attention,
        "COLLAPSED",
        {"COLLAPSED": 0.0, "COLLAPSED_SCORE_STD": 0.0},
    ),
    Measure(
        "attention-collapsed",
        "score std",
        attention,
        attention.check_attention,
        "COLLAPSED_SCORE_STD",
        {"COLLAPSED": 0.0, "COLLAPSED_SCORE_STD": 0.0},
    ),
    Measure(
        "attention-uniform",
        "1 - entropy",
        attention,
        attention.check_attention,
        "UNIFORM",
        {"COLLAPSED": 2.0, "UNIFORM": 1.0},
        below=True,
    ),
    Measure(
        "residual-stream-grows",
        "growth in second half",
        depth,
        depth.check_residual_stream,
        "MAX_GROWTH",
        {"MAX_GROWTH": 0.0},
    ),
    Measure(
        "update-too-large",
        "update / weight",
        optimizer_steps,
        optimizer_steps.check_update_sizes,
        "TOO_LARGE",
        {"TOO_LARGE": 0.0},
    ),
    Measure(
        "update-too-large",
        "change of gain",
        optimizer_steps,
        optimizer_steps.check_update_sizes,
        "MIN_GAIN_CHANGE",
        {"MIN_GAIN_CHANGE": 0.0},
    ),
    Measure(
        "update-too-small",
        "update / weight",
        optimizer_steps,
        optimizer_steps.check_update_sizes,
        "ROUNDING",
        {"ROUNDING": math.inf},
        below=True,
    ),
    Measure(
        "update-too-small",
        "update / median",
        optimizer_steps,
        optimizer_steps.check_update_sizes,
        "LAGGING",
        {"LAGGING": math.inf, "LAGGING_STEP": math.inf},
        below=True,
    ),
    Measure(
        "loss-above-chance", "excess", cross_entropy, cross_entropy.check_loss, "MAX_EXCESS", {"MAX_EXCESS": -math.inf}
    ),
    Measure(
        "eps-too-large",
        "eps / variance",
        norms,
        norms.check_norm_eps,
        "WARNING_RATIO",
        {"NOTE_RATIO": 0.0, "WARNING_RATIO": 0.0},
    ),
    Measure(
        "norm-over-few-values",
        "values",
        norms,
        norms.check_norm_sample_size,
        "FEW_VALUES",
        {"FEW_VALUES": math.inf},
        below=True,
    ),
    Measure("norm-over-padding", "padding", norms, norms.check_norm_over_padding, "PADDED", {"PADDED": 0.0}),
    Measure(
        "post-norm-without-warmup",
        "post-norm additions",
        optimizer_steps,
        optimizer_steps.check_warmup,
        "MIN_ADDITIONS",
        {"MIN_ADDITIONS": 0.0},
    ),
    Measure(
        "post-norm-without-warmup",
        "lr",
        optimizer_steps,
        optimizer_steps.check_warmup,
        "MIN_LR",
        {"MIN_LR": 0.0},
    ),
    Measure(
        "uncentered-weights", "mean / rms", weights, weights.check_initial_weights, "OFF_CENTER", {"OFF_CENTER": 0.0}
    ),
    Measure(
        "abnormal-gain",
        "predicted gain",
        weights,
        weights.check_initial_weights,
        "LARGEST_GAIN",
        {"LARGEST_GAIN": 0.0, "OFF_CENTER": math.inf},
    ),
    Measure(
        "abnormal-gain",
        "measured / predicted",
        weights,
        weights.check_initial_weights,
        "MAX_GAIN_RATIO",
        {"MAX_GAIN_RATIO": 0.0, "OFF_CENTER": math.inf},
    ),
    Measure(
        "exploded-weights",
        "predicted gain",
        weights,
        weights.check_exploded_weights,
        "LARGEST_GAIN",
        {"LARGEST_GAIN": 0.0},
    ),
    Measure(
        "outlier-weights",
        "ratio",
        outlier_weights,
        outlier_weights.check_outlier_weights,
        "OUTLIER_RATIO",
        {"OUTLIER_RATIO": 1.0},
        two_sided=True,
    ),
    Measure("outlier-features", "int8 error", units, units.check_outlier_features, "MAX_ERROR", {"MAX_ERROR": 0.0}),
    Measure(
        "stale-running-statistics",
        "mean shift",
        norms,
        norms.check_running_statistics,
        "MAX_MEAN_SHIFT",
        {"MAX_MEAN_SHIFT": 0.0},
    ),
    Measure(
        "stale-running-statistics",
        "variance ratio",
        norms,
        norms.check_running_statistics,
        "MAX_VARIANCE_RATIO",
        {"MAX_VARIANCE_RATIO": 0.0},
    ),
]
