"""Weights that ran and are not the model's: nobody trains them, saves them or moves them to a device."""

import math
from collections import defaultdict

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called
from normscope.diagnostics.record import UnregisteredParameter


def strangers(view: View) -> list[Finding]:
    """One finding for each module that used some. Weights that an optimiser was seen to have are left out."""
    by_module: dict[str, list[UnregisteredParameter]] = defaultdict(list)
    for stranger in view.record.unregistered_parameters:
        by_module[stranger.module].append(stranger)
    return [_finding(name, found) for name, found in by_module.items()]


def _finding(name: str, found: list[UnregisteredParameter]) -> Finding:
    first, count = found[0], sum(stranger.count for stranger in found)
    shape = " x ".join(map(str, first.shape))
    weights = f"a weight of {shape}" if count == 1 else f"{count} weights, the first of {shape},"
    return Finding(
        "weights-not-owned",
        "warning",
        name,
        f"{called(name)} multiplies by {weights} that {'is' if count == 1 else 'are'} not among the model's parameters",
        {
            "weights": count,
            "numbers": sum(math.prod(stranger.shape) * stranger.count for stranger in found),
            "first used by": first.function,
        },
        "A weight that asks for a gradient is meant to learn, but parameters() does not have it: an optimiser that is "
        "made from that leaves it as it starts, state_dict() does not save it, and to(device) does not move it.",
        "keep layers in nn.ModuleList or nn.ModuleDict instead of a plain list or dict, a single weight as "
        "nn.Parameter, and make both in __init__, not in forward; if it is meant to stay as it is, say so: "
        "requires_grad_(False)",
    )
