"""Activations and gradients that vanish or explode with depth."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, is_inside, module_ref, parent_name
from normscope.diagnostics.findings.stacks import Trend, stacks, trend
from normscope.diagnostics.record import ModuleRecord, TensorStats
from normscope.render.formatting import format_short

MAX_FACTOR = 1000.0
"""Total change of scale over a stack. A gain of g per layer gives g^depth, and theory (He et al. 2015) asks for g = 1.
PyTorch's default initialization before a ReLU has g = 1 / sqrt(6), which reaches 1/1000 at the eighth layer, about
where plain networks stop training without a norm or a better initialization."""

MIN_STEADY_FACTOR = 100.0
"""What must remain without the largest single step; otherwise one layer is at fault, not the depth."""

HOPELESS = 2.0**23
"""Beyond this, one end of the stack is below float32's rounding of the other."""


_VERBS = {"vanishing": "shrinks", "exploding": "grows"}


def check_depth(view: RecordView) -> list[Finding]:
    """Find activations and gradients that vanish or explode in stacks of similar layers."""
    found: dict[tuple[str, str], Finding] = {}
    with_joins = [module.name for module in view.ran if module.joins]
    for stack in sorted(stacks(view), key=len, reverse=True):
        residual = any(is_inside(name, module.name) for module in stack for name in with_joins)
        if not residual:  # residual streams are checked by check_residual_stream
            levels = [*_rms_values([stack[0].input]), *_rms_values([module.output for module in stack])]
            _add(found, _activations(view, stack, trend(levels)))
        norms = [_norm(module.gradient) for module in reversed(stack)]
        _add(found, _gradients(view, stack, trend(norms)))
    for module in view.ran:
        if module.rms_by_call and not module.is_function:
            outer = [finding.module for finding in found.values() if finding.name == "exploding-activations"]
            if not any(is_inside(module.name, name) for name in outer):
                _add(found, _recurrent_calls(view, module, trend(list(module.rms_by_call))))
    return list(found.values())


def _add(found: dict[tuple[str, str], Finding], finding: Finding | None) -> None:
    """Keep one finding of each kind per parent, for the longest stack: layers and activations vanish together."""
    if finding is not None:
        found.setdefault((finding.name, parent_name(finding.module)), finding)


def _rms_values(stats: list[TensorStats | None]) -> list[float]:
    return [one.rms for one in stats if one is not None and one.count]


def _norm(stats: TensorStats | None) -> float:
    """The norm of a gradient, not its rms: pooling that spreads a gradient over more values does not shrink it."""
    return 0.0 if stats is None else stats.rms * math.sqrt(stats.count)


def _direction(found: Trend | None) -> str | None:
    if found is None:
        return None
    if found.total >= MAX_FACTOR and found.steady >= MIN_STEADY_FACTOR:
        return "exploding"
    if found.total <= 1 / MAX_FACTOR and found.steady <= 1 / MIN_STEADY_FACTOR:
        return "vanishing"
    return None


def _factor(found: Trend) -> float:
    """Total growth or shrinkage, as a factor above 1."""
    return max(found.total, 1 / found.total)


def _severity(found: Trend) -> str:
    return "error" if _factor(found) > HOPELESS else "warning"


def _evidence(found: Trend, layers: int) -> dict[str, float | str]:
    return {"total factor": found.total, "factor per layer": found.layer, "layers": layers}


def _activations(view: RecordView, stack: list[ModuleRecord], found: Trend | None) -> Finding | None:
    direction = _direction(found)
    if direction is None or found is None:
        return None
    first, last, vanishing = stack[0].name, stack[-1].name, direction == "vanishing"
    return Finding(
        f"{direction}-activations",
        _severity(found),
        last,
        f"activation rms {_VERBS[direction]} {format_short(_factor(found))} times from {module_ref(first)} to "
        f"{module_ref(last)}",
        _evidence(found, len(stack)),
        f"Each of {len(stack)} layers scales its input by about {format_short(found.layer)}. "
        + (
            "The output hardly depends on the input, so the loss cannot tell inputs apart."
            if vanishing
            else "Outputs and loss become huge, and one update of any layer makes training diverge."
        ),
        view.initialization_advice(
            f"initialize the weights for a gain of 1 per layer (now {format_short(found.layer)}), e.g. "
            f"nn.init.kaiming_normal_(weight) before a ReLU, or add norms between the layers"
        ),
    )


def _gradients(view: RecordView, stack: list[ModuleRecord], found: Trend | None) -> Finding | None:
    direction = _direction(found)
    if direction is None or found is None:
        return None
    first, last, vanishing = stack[0].name, stack[-1].name, direction == "vanishing"
    return Finding(
        f"{direction}-gradients",
        _severity(found),
        first,
        f"the gradient norm {_VERBS[direction]} {format_short(_factor(found))} times from {module_ref(last)} "
        f"back to {module_ref(first)}",
        _evidence(found, len(stack)),
        f"In the backward pass each layer scales the gradient by about {format_short(found.layer)}. "
        + (
            f"With one learning rate for all layers, {module_ref(first)} learns {format_short(1 / found.total)} times "
            f"more slowly than {module_ref(last)}."
            if vanishing
            else f"A learning rate that suits {module_ref(last)} makes {module_ref(first)} diverge."
        ),
        view.initialization_advice(
            f"use an activation and initialization with a gain near 1 per layer (now {format_short(found.layer)}): "
            "ReLU or GELU with nn.init.kaiming_normal_(weight), norms between the layers, or residual connections"
        ),
    )


def _recurrent_calls(view: RecordView, module: ModuleRecord, found: Trend | None) -> Finding | None:
    if _direction(found) != "exploding" or found is None:
        return None
    calls = len(module.rms_by_call)
    return Finding(
        "exploding-activations",
        _severity(found),
        module.name,
        f"the output rms of {module_ref(module.name)} grows {format_short(found.total)} times over {calls} calls",
        {"total factor": found.total, "factor per call": found.layer, "calls": calls},
        f"The module is applied to its own output repeatedly, and each call scales it by about "
        f"{format_short(found.layer)}.",
        view.initialization_advice(
            f"initialize its recurrent weights as orthogonal matrices, nn.init.orthogonal_(weight), or apply a bounded "
            f"activation such as tanh to the state (gain per call is {format_short(found.layer)}, should be at most 1)"
        ),
    )
