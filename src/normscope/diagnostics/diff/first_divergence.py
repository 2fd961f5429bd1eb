"""Where a difference of two x-rays begins: on the way forward, and on the way back."""

import math
from collections.abc import Iterator, Sequence

from normscope.diagnostics.diff.differences import Beginning, Difference, ModuleDifference
from normscope.diagnostics.record import XrayRecord

_GIVEN = "{} was given something else"


def _outer(name: str) -> Iterator[str]:
    """The modules that one is inside of, the innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def begins_forward(found: Difference) -> Beginning | None:
    """The first one that gives something else, and has no other one inside of it that does.

    One that is called at several places may have been given something else only at a later one; unless its weights are
    others.
    """
    different = [module for module in found.modules if found.exceeds(module.output)]
    around = {outer for module in different for outer in _outer(module.name)}
    for module in different:
        later = module.repeated and found.exceeds(module.input) and not _has_other_weights(found, module)
        if module.name not in around and not later:
            assert module.output is not None
            place, why = _why(found, module)
            return Beginning(place, module.output, why)
    return None


def _has_other_weights(found: Difference, module: ModuleDifference) -> bool:
    return found.exceeds(module.weights) or module.other_weights


def _why(found: Difference, module: ModuleDifference) -> tuple[str, str]:
    """Which module is meant, and what is known of the reason."""
    if math.isinf(module.output or 0) and module.remarks:
        return module.name, "; ".join(module.remarks)
    if _has_other_weights(found, module):
        return module.name, "its weights are not the same"
    ran = {other.name: other for other in found.modules if other.order is not None}
    if found.exceeds(module.input):
        return _given(found, module, ran)
    whole = [name for name in _outer(module.name) if name in ran][-1:]
    if whole and not module.same_input and found.exceeds(ran[whole[0]].input):  # by its prints, with the same size
        return whole[0], _GIVEN.format("it" if whole[0] else "the model")
    given = "it was given the same numbers" if module.same_input else "what it was given is of the same size"
    same = f"{given} and {'has' if module.same_input else 'it has'} the same weights"
    if module.remarks:
        return module.name, f"{'; '.join(module.remarks)}; {same}"
    return module.name, f"{same}: it computes something else, by its code, its buffers or random numbers"


def _given(found: Difference, module: ModuleDifference, ran: dict[str, ModuleDifference]) -> tuple[str, str]:
    """The outermost one that was given something else, from within the first one that was not."""
    place, inside = module.name, None
    for name in _outer(module.name):
        if name in ran:  # lists of modules do not
            if not found.exceeds(ran[name].input):
                inside = name or "the model itself"
                break
            place = name
    why = _GIVEN.format("it" if place else "the model")
    return place, why if inside is None else f"{why}, made in {inside} before it"


def begins_backward(found: Difference, readers: dict[str, list[str]]) -> Beginning | None:
    """The first one on the way back that got another gradient than before, or made one for its own weights.

    Gradients come to outputs in the opposite order of that in which these were made; a module makes its output when
    all of those inside of it have made theirs.
    """
    ends: dict[str, int] = {}
    for module in found.modules:
        for name in (module.name, *_outer(module.name)):
            ends[name] = max(ends.get(name, -1), -1 if module.order is None else module.order)
    ran = [module for module in found.modules if module.order is not None]
    by_name = {module.name: module for module in ran}
    for module in sorted(ran, key=lambda module: (ends[module.name], -(module.order or 0)), reverse=True):
        if found.exceeds(module.gradient):
            assert module.gradient is not None
            maker = _innermost_maker(found, [by_name[name] for name in readers.get(module.name, []) if name in by_name])
            if maker is None:
                return Beginning(module.name, module.gradient, "the gradient that comes to its output is another")
            return Beginning(maker, module.gradient, f"it makes another gradient for what {module.name} gives")
        if found.exceeds(module.weight_gradients):
            assert module.weight_gradients is not None
            same = "" if module.gradient is None else ", though the one that comes to its output is the same"
            return Beginning(module.name, module.weight_gradients, f"its weights get another gradient{same}")
    return None


def _innermost_maker(found: Difference, readers: Sequence[ModuleDifference]) -> str | None:
    """Of those that read a tensor, the first to which the gradient came as before; the innermost of its modules."""
    right = [reader.name for reader in readers if reader.gradient is not None and not found.exceeds(reader.gradient)]
    maker = right[0] if right else None
    for name in right:
        maker = name if name.startswith(f"{maker}.") else maker
    return maker


def readers_of(record: XrayRecord) -> dict[str, list[str]]:
    """Of each module those that were given its output, in the order in which they ran."""
    readers: dict[str, list[str]] = {}
    for module in record.ran:
        for maker in module.fed_by:
            readers.setdefault(maker, []).append(module.name)
    return readers
