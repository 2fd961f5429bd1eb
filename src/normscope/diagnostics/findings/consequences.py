"""Findings that another finding explains: of a cause and what follows from it, only the cause is reported."""

from collections.abc import Iterable

from normscope.diagnostics.findings.finding import Finding

_NO_GRADIENTS = frozenset(
    {"graph-cut", "no-targets", "softmax-over-one-output", "anchor-equals-positive", "loss-scaled"}
)
_NO_SIGNAL = frozenset(
    {"dead-units", "saturated-units", "identical-units", "norm-over-few-values", "abnormal-gain", "constant-input"}
    | {"vanishing-gradients", "vanishing-activations", "non-finite-output", "exploded-weights"}
)
CONSEQUENCES: dict[str, frozenset[str]] = {
    "weights-unchanged": _NO_GRADIENTS | {"constant-loss", "zero-gradient"},
    "update-too-small": frozenset({"clipping-always", "loss-scaled", "vanishing-gradients", "weights-unchanged"}),
    "optimizer-eps-dominates": frozenset({"loss-scaled", "clipping-always", "vanishing-gradients"}),
    "zero-gradient": _NO_GRADIENTS,
    "attention-uniform": frozenset({"attention-mask"}),
    "positions-unused": frozenset({"no-gradient"}),
    "dead-units": frozenset({"unscaled-input"}),
    "no-gradient": frozenset({"graph-cut", "wrong-detach"}),
    "collapsed-output": _NO_SIGNAL,
    "loss-above-chance": frozenset({"loss-rises", "loss-maximized", "logits-as-probabilities"}),
    "update-too-large": frozenset({"summed-loss", "unscaled-input"}),
    "exploded-weights": frozenset(
        {"loss-maximized", "loss-rises", "summed-loss", "logits-as-probabilities", "unscaled-input", "negative-loss"}
    ),
    "mixes-samples": frozenset(
        {"softmax-over-batch", "mixes-axes", "attention-softmax-axis", "input-changed-in-place"}
    ),
    "non-finite-output": frozenset({"no-targets"}),
    "no-targets": frozenset({"empty-batch"}),
}
"""For a finding, the findings that explain it, wherever in the model they are."""


def without_consequences(found: Iterable[Finding]) -> list[Finding]:
    """Drop findings that a warning or an error explains, and repetitions of a finding in the same module.

    >>> cut, still = Finding("graph-cut", "error", "", "cut"), Finding("weights-unchanged", "warning", "", "still")
    >>> [finding.name for finding in without_consequences([still, cut, cut])]
    ['graph-cut']
    """
    first: dict[tuple[str, str], Finding] = {}
    for finding in found:
        first.setdefault((finding.name, finding.module), finding)
    causes = {finding.name for finding in first.values() if finding.severity != "note"}
    return [finding for finding in first.values() if not CONSEQUENCES.get(finding.name, frozenset()) & causes]
