"""What differs between two x-rays of a model, and where it begins.

Made for two runs or steps, the same model compiled or not, with a cache or without, in float32 and in bfloat16.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from normscope.checks import check_positive_number
from normscope.diagnostics.diff.differences import Beginning, Difference, ModuleDifference
from normscope.diagnostics.diff.distance import coarsest, differ_in_size, distance, distance_of_prints
from normscope.diagnostics.diff.first_divergence import begins_backward, begins_forward, readers_of
from normscope.diagnostics.record import ModuleRecord, ParameterRecord, XrayRecord

__all__ = ["Beginning", "Difference", "ModuleDifference", "compare"]

_NOISE = 1.0
"""Gradients of fewer roundings of the largest one are what is left of sums that cancel, and never alike."""


def compare(a: XrayRecord, b: XrayRecord, *, tolerance: float | None = None) -> Difference:
    """Compare two records, module by module.

    The tolerance is half of the digits of the coarsest type in the two, unless one is given: the root of its spacing
    next to 1, so 3.5e-4 for float32 and 0.088 for bfloat16.

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
    ('2', 'its weights are not the same')
    """
    if tolerance is not None:
        check_positive_number(tolerance=tolerance)
    dtype, eps = coarsest((a, b))
    limit = math.sqrt(eps) if tolerance is None else tolerance
    modules = tuple(_modules(a, b, eps))
    remarks = tuple(_of_the_whole(a, b))
    found = Difference(_labels(a, b), limit, dtype, modules, None, None, remarks)
    forward, backward = begins_forward(found), begins_backward(found, readers_of(a) | readers_of(b))
    if forward is not None and backward is not None:
        backward = replace(backward, why="which need not be a fault of its own: the way forward is not the same")
    return replace(found, forward=forward, backward=backward)


def _labels(a: XrayRecord, b: XrayRecord) -> tuple[str, str]:
    names = [record.label or record.model for record in (a, b)]
    return ("the first", "the second") if names[0] == names[1] else (names[0], names[1])


def _modules(a: XrayRecord, b: XrayRecord, eps: float) -> Iterator[ModuleDifference]:
    """All modules, in the order in which they ran in the first; those that only the second has, as they ran there."""
    ours = {module.name: module for module in a.modules if module.alias_of is None}
    theirs = {module.name: module for module in b.modules if module.alias_of is None}
    noise = [_NOISE * eps * max(_gradient_sizes(record), default=0.0) for record in (a, b)]
    weight_noise = [_NOISE * eps * max(_weight_gradient_sizes(record), default=0.0) for record in (a, b)]
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            there = one or other
            assert there is not None
            found.append(ModuleDifference(name, there.kind, there.order, only_in=0 if other is None else 1))
        else:
            in_step = one.calls == other.calls or _keep_time(one, other, a.batches, b.batches)
            repeated = one.calls > a.batches or other.calls > b.batches
            found.append(replace(_module(one, other, in_step, max(noise), max(weight_noise)), repeated=repeated))
    yield from sorted(found, key=lambda module: (module.order is None, module.order or 0))


def _keep_time(one: ModuleRecord, other: ModuleRecord, batches: int, other_batches: int) -> bool:
    """Whether prints can be compared though the calls were not as many: each one was the next stretch of a text."""
    once = one.calls == batches and other.calls == other_batches
    return once and all(len(shape) >= 3 for shape in (*one.output_shapes[:1], *other.output_shapes[:1]))


def _module(
    one: ModuleRecord, other: ModuleRecord, in_step: bool, noise: float, weight_noise: float
) -> ModuleDifference:
    pairs = [
        (p, q) for p in one.parameters for q in other.parameters if p.name == q.name and not (p.alias_of or q.alias_of)
    ]
    ran = one.order is not None, other.order is not None
    return ModuleDifference(
        name=one.name,
        kind=one.kind,
        order=one.order if ran[0] else other.order,
        input=_input_distance(one, other),
        output=distance(one.output, other.output, *(one.fingerprint, other.fingerprint) if in_step else ((), ())),
        gradient=distance(one.gradient, other.gradient, one.gradient_fingerprint, other.gradient_fingerprint, noise),
        weights=_largest(distance(p.values, q.values) for p, q in pairs),
        weight_gradients=_largest(distance(p.gradient, q.gradient, noise=weight_noise) for p, q in pairs),
        other_weights=any(p.dtype == q.dtype and p.content_hash != q.content_hash for p, q in pairs),
        other_sizes=any(differ_in_size(*pair) for pair in ((one.output, other.output), (one.gradient, other.gradient)))
        or any(p.shape != q.shape for p, q in pairs),
        ran_only_in=None if ran[0] == ran[1] else ran.index(True),
        same_input=bool(one.fed_by and other.fed_by) or all(_given_prints(one, other)),
        remarks=tuple(_remarks(one, other, pairs)) if all(ran) else (),
    )


def _input_distance(one: ModuleRecord, other: ModuleRecord) -> float | None:
    """Of what came in; of what came from outside of the model there are prints too, also of whole numbers."""
    prints = _given_prints(one, other)
    if one.input is None and other.input is None:
        return distance_of_prints(*prints)
    return distance(one.input, other.input, *prints)


def _given_prints(one: ModuleRecord, other: ModuleRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Those of what came from outside, if they can be compared: the same calls, with the same shapes."""
    in_step = one.calls == other.calls and one.input_shapes == other.input_shapes
    return (one.input_fingerprint, other.input_fingerprint) if in_step else ((), ())


def _largest(distances: Iterator[float | None]) -> float | None:
    return max((found for found in distances if found is not None), default=None)


def _gradient_sizes(record: XrayRecord) -> Iterator[float]:
    return (module.gradient.rms for module in record.modules if module.gradient is not None)


def _weight_gradient_sizes(record: XrayRecord) -> Iterator[float]:
    return (p.gradient.rms for module in record.modules for p in module.parameters if p.gradient is not None)


def _remarks(
    one: ModuleRecord, other: ModuleRecord, pairs: Sequence[tuple[ParameterRecord, ParameterRecord]]
) -> Iterator[str]:
    """What is not the same of a module that ran in both. Of several calls the first one's shape says little."""
    if one.kind != other.kind:
        yield f"{one.kind} and {other.kind}"
    if one.calls == other.calls and one.output_shapes != other.output_shapes:
        yield f"gives {_shapes(one.output_shapes)} and {_shapes(other.output_shapes)}"
    if one.calls != other.calls:
        yield f"{one.calls} and {other.calls} calls"
    if one.dtype != other.dtype:
        yield f"{one.dtype} and {other.dtype}"
    if one.training != other.training:
        yield _modes(one, other)
    for p, q in pairs:
        if p.shape != q.shape:
            yield f"{p.name} {p.shape} and {q.shape}"


def _modes(one: ModuleRecord, other: ModuleRecord) -> str:
    words = ["training" if module.training else "eval" for module in (one, other)]
    return f"{words[0]} and {words[1]} mode"


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(str(shape) for shape in shapes) or "nothing"


def _of_the_whole(a: XrayRecord, b: XrayRecord) -> Iterator[str]:
    ran = [{module.name for module in record.ran} for record in (a, b)]
    both = {module.name for module in a.modules} & {module.name for module in b.modules}
    for label, here, there in zip(_labels(a, b), ran, reversed(ran), strict=True):
        if (here - there) & both:
            yield f"modules that ran only in {label}, or were seen only there: {len((here - there) & both)}"
    roots = [next((module for module in record.ran if not module.name), None) for record in (a, b)]
    if roots[0] is not None and roots[1] is not None and roots[0].training != roots[1].training:
        yield f"the model was in {_modes(roots[0], roots[1])}"
    if a.model != b.model:
        yield f"models: {a.model} and {b.model}"
    for what, one, other in (
        ("batches", a.batches, b.batches),
        ("backward passes", a.backward_passes, b.backward_passes),
    ):
        if one != other:
            yield f"{what}: {one} and {other}"
    losses = [f"{record.losses[0].value:.6g}" for record in (a, b) if record.losses]
    if len(set(losses)) == 2:
        yield f"loss: {' and '.join(losses)}"
