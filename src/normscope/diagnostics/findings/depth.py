"""Signals and gradients that fade or grow from layer to layer."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, is_inside, parent, short
from normscope.diagnostics.findings.stacks import Trend, stacks, trend
from normscope.diagnostics.record import ModuleRecord, TensorStats

FACTOR = 1000.0
"""A stack that scales by so much is at fault. A gain of g a layer gives g^depth, and theory (He et al. 2015) asks for
g = 1; torch's own start of a linear layer before a ReLU has g = 1 / sqrt(6), which comes to 1/1000 at the eighth layer,
about where plain networks stop to learn without a norm or a better start."""

STEADY = 100.0
"""What has to be left of it without the largest single step; else one layer is at fault and not the depth."""

HOPELESS = 2.0**23
"""Beyond this the far end is under float32's rounding of the near end."""


_VERBS = {"vanishing": "fades to", "exploding": "grows to"}


def depth_trends(view: View) -> list[Finding]:
    """Activations and gradients that vanish or explode by depth, in stacks of like layers."""
    found: dict[tuple[str, str], Finding] = {}
    with_joins = [module.name for module in view.ran if module.joins]
    for stack in sorted(stacks(view), key=len, reverse=True):
        residual = any(is_inside(name, module.name) for module in stack for name in with_joins)
        if not residual:  # of streams `stream-grows` tells
            levels = [*_sizes([stack[0].input]), *_sizes([module.output for module in stack])]
            _add(found, _activations(view, stack, trend(levels)))
        back = [_length(module.gradient) for module in reversed(stack)]
        _add(found, _gradients(view, stack, trend(back)))
    for module in view.ran:
        if module.rms_by_call and not module.is_function:
            outer = [finding.module for finding in found.values() if finding.name == "exploding-activations"]
            if not any(is_inside(module.name, name) for name in outer):
                _add(found, _calls(view, module, trend(list(module.rms_by_call))))
    return list(found.values())


def _add(found: dict[tuple[str, str], Finding], finding: Finding | None) -> None:
    """Keep one of each kind for a parent, of its longest stack: layers and activations between them fade together."""
    if finding is not None:
        found.setdefault((finding.name, parent(finding.module)), finding)


def _sizes(signals: list[TensorStats | None]) -> list[float]:
    return [signal.rms for signal in signals if signal is not None and signal.count]


def _length(signal: TensorStats | None) -> float:
    """The length of a gradient, not its rms: a pool that spreads it over more numbers does not make it fade."""
    return 0.0 if signal is None else signal.rms * math.sqrt(signal.count)


def _direction(found: Trend | None) -> str | None:
    if found is None:
        return None
    if found.total >= FACTOR and found.steady >= STEADY:
        return "exploding"
    if found.total <= 1 / FACTOR and found.steady <= 1 / STEADY:
        return "vanishing"
    return None


def _severity(found: Trend) -> str:
    return "error" if max(found.total, 1 / found.total) > HOPELESS else "warning"


def _figures(found: Trend, layers: int) -> dict[str, float | str]:
    return {"total": found.total, "per layer": found.layer, "layers": layers}


def _activations(view: View, stack: list[ModuleRecord], found: Trend | None) -> Finding | None:
    direction = _direction(found)
    if direction is None or found is None:
        return None
    first, last, fades = stack[0].name, stack[-1].name, direction == "vanishing"
    return Finding(
        f"{direction}-activations",
        _severity(found),
        last,
        f"the signal {_VERBS[direction]} {short(found.total)} of its size from {called(first)} to {called(last)}",
        _figures(found, len(stack)),
        f"Each layer scales its input by about {short(found.layer)}, and {len(stack)} of them multiply. "
        + (
            "What comes out depends on the input too little for the loss to tell one input from another."
            if fades
            else "Outputs and loss become huge, and a step in any layer moves them out of bounds."
        ),
        view.of_the_start(
            f"start the weights with a gain that the activation asks for, such as nn.init.kaiming_normal_(weight) "
            f"before a ReLU (now {short(found.layer)} a layer, wanted 1), or put a norm between the layers"
        ),
    )


def _gradients(view: View, stack: list[ModuleRecord], found: Trend | None) -> Finding | None:
    direction = _direction(found)
    if direction is None or found is None:
        return None
    first, last, fades = stack[0].name, stack[-1].name, direction == "vanishing"
    return Finding(
        f"{direction}-gradients",
        _severity(found),
        first,
        f"the gradient {_VERBS[direction]} {short(found.total)} of its size on the way back "
        f"from {called(last)} to {called(first)}",
        _figures(found, len(stack)),
        f"On the way back each layer scales the gradient by about {short(found.layer)}. "
        + (
            f"With one rate for all, {called(first)} learns {short(1 / found.total)} times more slowly than "
            f"{called(last)}."
            if fades
            else f"A rate that suits {called(last)} throws {called(first)} about."
        ),
        view.of_the_start(
            f"use an activation and a start with a gain near 1 (now {short(found.layer)} a layer): ReLU or GELU with "
            f"nn.init.kaiming_normal_(weight), norms between the layers, or residual connections round them"
        ),
    )


def _calls(view: View, module: ModuleRecord, found: Trend | None) -> Finding | None:
    if _direction(found) != "exploding" or found is None:
        return None
    return Finding(
        "exploding-activations",
        _severity(found),
        module.name,
        f"the output of {called(module.name)} grows to {short(found.total)} of its size in {len(module.rms_by_call)} calls",
        {"total": found.total, "per call": found.layer, "calls": len(module.rms_by_call)},
        f"It is called again and again on its own output, and each call scales it by about {short(found.layer)}.",
        view.of_the_start(
            f"start its recurrent weights orthogonal: nn.init.orthogonal_(weight), or put a bounded activation such as "
            f"tanh on the state (now {short(found.layer)} a call, wanted 1 at most)"
        ),
    )
