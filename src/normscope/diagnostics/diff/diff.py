"""Compare two x-rays of a model and find where they diverge.

Use it for two runs or steps, or for one model compiled or not, with or without a KV cache, in float32 and bfloat16.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from normscope.checks import check_positive_number
from normscope.diagnostics.diff.differences import (
    Divergence,
    ModuleDiff,
    RecordDiff,
    coarsest_dtype,
    differ_in_numel,
    fingerprint_distance,
    tensor_distance,
)
from normscope.diagnostics.module_names import outer_names
from normscope.diagnostics.record import ModuleRecord, ParameterRecord, XrayRecord

_NOISE = 1.0
"""Gradients below this many ulp of the largest one are rounding residue of sums that cancel, and never equal."""

_DIFFERENT_INPUT = "the input of {} differs"


def compare(a: XrayRecord, b: XrayRecord, *, tolerance: float | None = None) -> RecordDiff:
    """Compare two records, module by module.

    The default tolerance is half the digits of the coarsest dtype: the square root of its machine epsilon, 3.5e-4 for
    float32 and 0.088 for bfloat16.

    >>> import torch
    >>> from torch import nn
    >>> from normscope.diagnostics.probe import Xray
    >>> model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(5, 4)
    >>> with Xray(model) as before:
    ...     y = model(x)
    >>> model[2].weight.data *= 1.5
    >>> with Xray(model) as after:
    ...     y = model(x)
    >>> found = compare(before.record, after.record)
    >>> found.forward.module, found.forward.why
    ('2', 'its weights differ')
    """
    if tolerance is not None:
        check_positive_number(tolerance=tolerance)
    dtype, eps = coarsest_dtype((a, b))
    limit = math.sqrt(eps) if tolerance is None else tolerance
    modules, remarks = tuple(_modules(a, b, eps)), tuple(_overall_remarks(a, b))
    found = RecordDiff(_labels(a, b), limit, dtype, modules, None, None, remarks)
    forward, backward = _first_forward_divergence(found), _first_backward_divergence(found, a.readers | b.readers)
    if forward is not None and backward is not None:
        backward = replace(backward, why="this may follow from the different forward pass")
    return replace(found, forward=forward, backward=backward)


def _labels(a: XrayRecord, b: XrayRecord) -> tuple[str, str]:
    names = [record.label or record.model for record in (a, b)]
    return ("first", "second") if names[0] == names[1] else (names[0], names[1])


def _modules(a: XrayRecord, b: XrayRecord, eps: float) -> Iterator[ModuleDiff]:
    """All modules, in execution order; modules that only the second record has, in its order."""
    ours = {module.name: module for module in a.modules if module.alias_of is None}
    theirs = {module.name: module for module in b.modules if module.alias_of is None}
    both = [*a.modules, *b.modules]
    noise = _NOISE * eps * max((module.gradient.rms for module in both if module.gradient is not None), default=0.0)
    gradients = (parameter.gradient for module in both for parameter in module.parameters)
    weight_noise = _NOISE * eps * max((gradient.rms for gradient in gradients if gradient is not None), default=0.0)
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            there = theirs[name] if one is None else one
            found.append(ModuleDiff(name, there.kind, there.order, only_in=0 if other is None else 1))
        else:
            in_step = one.calls == other.calls or _covers_same_text(one, other, a.batches, b.batches)
            repeated = one.calls > a.batches or other.calls > b.batches
            found.append(replace(_module(one, other, in_step, noise, weight_noise), repeated=repeated))
    yield from sorted(found, key=lambda module: (module.order is None, module.order or 0))


def _covers_same_text(one: ModuleRecord, other: ModuleRecord, batches: int, other_batches: int) -> bool:
    """Whether fingerprints can be compared although the calls differ in number: each call was the next piece of a
    text."""
    once = one.calls == batches and other.calls == other_batches
    return once and all(len(shape) >= 3 for shape in (*one.output_shapes[:1], *other.output_shapes[:1]))


def _module(one: ModuleRecord, other: ModuleRecord, in_step: bool, noise: float, weight_noise: float) -> ModuleDiff:
    theirs = {q.name: q for q in other.parameters if not q.alias_of}
    pairs = [(p, theirs[p.name]) for p in one.parameters if p.name in theirs and not p.alias_of]
    ran = one.order is not None, other.order is not None
    fingerprints = (one.fingerprint, other.fingerprint) if in_step else ((), ())
    gradient_fingerprints = one.gradient_fingerprint, other.gradient_fingerprint
    signals = (one.output, other.output), (one.gradient, other.gradient)
    return ModuleDiff(
        name=one.name,
        kind=one.kind,
        order=one.order if ran[0] else other.order,
        input=_input_distance(one, other),
        output=tensor_distance(one.output, other.output, *fingerprints),
        gradient=tensor_distance(one.gradient, other.gradient, *gradient_fingerprints, noise),
        weights=_largest(tensor_distance(p.values, q.values) for p, q in pairs),
        weight_gradients=_largest(tensor_distance(p.gradient, q.gradient, noise=weight_noise) for p, q in pairs),
        weights_differ=any(p.dtype == q.dtype and p.content_hash != q.content_hash for p, q in pairs),
        shapes_differ=any(differ_in_numel(*pair) for pair in signals) or any(p.shape != q.shape for p, q in pairs),
        ran_only_in=None if ran[0] == ran[1] else ran.index(True),
        same_input=bool(one.fed_by and other.fed_by) or all(_input_fingerprints(one, other)),
        remarks=tuple(_remarks(one, other, pairs)) if all(ran) else (),
    )


def _input_distance(one: ModuleRecord, other: ModuleRecord) -> float | None:
    """Distance of the inputs. Inputs from outside the model, including token ids, also have fingerprints."""
    fingerprints = _input_fingerprints(one, other)
    if one.input is None and other.input is None:
        return fingerprint_distance(*fingerprints)
    return tensor_distance(one.input, other.input, *fingerprints)


def _input_fingerprints(one: ModuleRecord, other: ModuleRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Fingerprints of inputs from outside the model, if comparable: the same number of calls and the same shapes."""
    in_step = one.calls == other.calls and one.input_shapes == other.input_shapes
    return (one.input_fingerprint, other.input_fingerprint) if in_step else ((), ())


def _largest(distances: Iterator[float | None]) -> float | None:
    return max((found for found in distances if found is not None), default=None)


def _remarks(
    one: ModuleRecord, other: ModuleRecord, pairs: Sequence[tuple[ParameterRecord, ParameterRecord]]
) -> Iterator[str]:
    """Differences of a module that ran in both. Shapes are compared only for equal numbers of calls."""
    if one.kind != other.kind:
        yield f"{one.kind} vs {other.kind}"
    if one.calls == other.calls and one.output_shapes != other.output_shapes:
        yield f"output shape {_shapes(one.output_shapes)} vs {_shapes(other.output_shapes)}"
    if one.calls != other.calls:
        yield f"{one.calls} vs {other.calls} calls"
    if one.dtype != other.dtype:
        yield f"{one.dtype} vs {other.dtype}"
    if one.training != other.training:
        yield _modes(one, other)
    for p, q in pairs:
        if p.shape != q.shape:
            yield f"{p.name} {p.shape} vs {q.shape}"


def _modes(one: ModuleRecord, other: ModuleRecord) -> str:
    modes = ["training" if module.training else "eval" for module in (one, other)]
    return f"{modes[0]} vs {modes[1]} mode"


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(str(shape) for shape in shapes) or "nothing"


def _overall_remarks(a: XrayRecord, b: XrayRecord) -> Iterator[str]:
    ran = [{module.name for module in record.ran} for record in (a, b)]
    both = {module.name for module in a.modules} & {module.name for module in b.modules}
    for label, here, there in zip(_labels(a, b), ran, reversed(ran), strict=True):
        if (here - there) & both:
            yield f"modules that ran or were recorded only in {label}: {len((here - there) & both)}"
    roots = [next((module for module in record.ran if not module.name), None) for record in (a, b)]
    if roots[0] is not None and roots[1] is not None and roots[0].training != roots[1].training:
        yield f"the model was in {_modes(roots[0], roots[1])}"
    facts = (("models", a.model, b.model), ("batches", a.batches, b.batches))
    for name, ours, theirs in (*facts, ("backward passes", a.backward_passes, b.backward_passes)):
        if ours != theirs:
            yield f"{name}: {ours} vs {theirs}"
    losses = [f"{record.losses[0].value:.6g}" for record in (a, b) if record.losses]
    if len(set(losses)) == 2:
        yield f"loss: {' vs '.join(losses)}"


def _first_forward_divergence(found: RecordDiff) -> Divergence | None:
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


def _first_backward_divergence(found: RecordDiff, readers: Mapping[str, Sequence[ModuleRecord]]) -> Divergence | None:
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
            known = [by_name[reader.name] for reader in readers.get(module.name, ()) if reader.name in by_name]
            source = _innermost_source(found, known)
            if source is None:
                return Divergence(module.name, module.gradient, "the gradient of its output differs")
            why = f"it computes a different gradient for the output of {module.name}"
            return Divergence(source, module.gradient, why)
        if found.exceeds(module.weight_gradients):
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
