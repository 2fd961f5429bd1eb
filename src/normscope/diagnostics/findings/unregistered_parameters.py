"""Weights that the model uses but does not register: they are not trained, saved or moved to a device."""

import math
from collections import defaultdict

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref
from normscope.diagnostics.record import UnregisteredParameter


def check_unregistered_parameters(view: RecordView) -> list[Finding]:
    """Return one finding per module that uses such weights. Weights that an optimizer has are not recorded."""
    by_module: dict[str, list[UnregisteredParameter]] = defaultdict(list)
    for parameter in view.record.unregistered_parameters:
        by_module[parameter.module].append(parameter)
    return [_finding(name, found) for name, found in by_module.items()]


def _finding(name: str, found: list[UnregisteredParameter]) -> Finding:
    first, count = found[0], sum(parameter.count for parameter in found)
    shape = " x ".join(map(str, first.shape))
    weights = (
        f"a weight ({shape}) that is not a registered parameter"
        if count == 1
        else (f"{count} weights (the first {shape}) that are not registered parameters")
    )
    return Finding(
        "unregistered-parameters",
        "warning",
        name,
        f"{module_ref(name)} uses {weights}",
        {
            "weights": count,
            "elements": sum(math.prod(parameter.shape) * parameter.count for parameter in found),
            "first used by": first.function,
        },
        "The weights require a gradient but are missing from parameters(): an optimizer built from it does not train "
        "them, state_dict() does not save them, and to(device) does not move them.",
        "store layers in nn.ModuleList or nn.ModuleDict instead of a plain list or dict, single weights as "
        "nn.Parameter, and create both in __init__, not in forward; for constants, call requires_grad_(False)",
    )
