"""Locate where two x-rays first diverge, in the forward and in the backward pass."""

import math
from collections.abc import Mapping, Sequence

from normscope.diagnostics.diff.differences import Divergence, ModuleDiff, RecordDiff
from normscope.diagnostics.module_names import outer_names
from normscope.diagnostics.record import ModuleRecord

_DIFFERENT_INPUT = "the input of {} differs"


def first_forward_divergence(found: RecordDiff) -> Divergence | None:
    """The first module whose output differs and that contains no other such module.

    A module called in several places may differ only because a later input does, unless its weights differ.
    """
    different = [module for module in found.modules if found.exceeds(module.output)]
    around = {outer for module in different for outer in outer_names(module.name)}
    for module in different:
        later = module.repeated and found.exceeds(module.input) and not _weights_differ(found, module)
        if module.name not in around and not later:
            assert module.output is not None
            place, why = _why(found, module)
            return Divergence(place, module.output, why)
    return None


def _weights_differ(found: RecordDiff, module: ModuleDiff) -> bool:
    return found.exceeds(module.weights) or module.weights_differ


def _why(found: RecordDiff, module: ModuleDiff) -> tuple[str, str]:
    """The module to report, and the likely reason."""
    if math.isinf(module.output or 0) and module.remarks:
        return module.name, "; ".join(module.remarks)
    if _weights_differ(found, module):
        return module.name, "its weights differ"
    ran = {other.name: other for other in found.modules if other.order is not None}
    if found.exceeds(module.input):
        return _given(found, module, ran)
    whole = [name for name in outer_names(module.name) if name in ran][-1:]
    if whole and not module.same_input and found.exceeds(ran[whole[0]].input):  # its fingerprint differs, not its scale
        return whole[0], _DIFFERENT_INPUT.format("this module" if whole[0] else "the model")
    same = f"{'same input' if module.same_input else 'input of the same scale'} and same weights"
    if module.remarks:
        return module.name, f"{'; '.join(module.remarks)}; {same}"
    return module.name, f"{same}: its code, its buffers or random numbers differ"


def _given(found: RecordDiff, module: ModuleDiff, ran: dict[str, ModuleDiff]) -> tuple[str, str]:
    """The outermost module whose input differs, inside the first one whose input does not."""
    place, inside = module.name, None
    for name in outer_names(module.name):
        if name in ran:  # containers such as nn.ModuleList do not run
            if not found.exceeds(ran[name].input):
                inside = name or "the model"
                break
            place = name
    why = _DIFFERENT_INPUT.format("this module" if place else "the model")
    return place, why if inside is None else f"{why}; it is computed earlier in {inside}"


def first_backward_divergence(found: RecordDiff, readers: Mapping[str, Sequence[ModuleRecord]]) -> Divergence | None:
    """The first module in the backward pass whose output gradient or weight gradient differs.

    Gradients reach outputs in reverse order of their computation; a module's output is complete when those of all its
    submodules are.
    """
    ends: dict[str, int] = {}
    for module in found.modules:
        for name in (module.name, *outer_names(module.name)):
            ends[name] = max(ends.get(name, -1), -1 if module.order is None else module.order)
    ran = [module for module in found.modules if module.order is not None]
    by_name = {module.name: module for module in ran}
    for module in sorted(ran, key=lambda module: (ends[module.name], -(module.order or 0)), reverse=True):
        if found.exceeds(module.gradient):
            assert module.gradient is not None
            known = [by_name[reader.name] for reader in readers.get(module.name, ()) if reader.name in by_name]
            source = _innermost_source(found, known)
            if source is None:
                return Divergence(module.name, module.gradient, "the gradient of its output differs")
            why = f"it computes a different gradient for the output of {module.name}"
            return Divergence(source, module.gradient, why)
        if found.exceeds(module.weight_gradients):
            assert module.weight_gradients is not None
            same = "" if module.gradient is None else ", although that of its output is the same"
            return Divergence(module.name, module.weight_gradients, f"the gradient of its weights differs{same}")
    return None


def _innermost_source(found: RecordDiff, readers: Sequence[ModuleDiff]) -> str | None:
    """Among the readers of a tensor, the first with an unchanged gradient; its innermost module."""
    right = [reader.name for reader in readers if reader.gradient is not None and not found.exceeds(reader.gradient)]
    source = right[0] if right else None
    for name in right:
        source = name if name.startswith(f"{source}.") else source
    return source
