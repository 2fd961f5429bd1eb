"""What differs between two x-rays of a model, and where it begins.

Made for two runs or steps, the same model compiled or not, with a cache or without, in float32 and in bfloat16.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from normscope.checks import check_above_zero
from normscope.xray.distance import COARSEST, EPS, coarsest, distance
from normscope.xray.record import Module, Parameter, Record

_NOISE = 1.0
"""Gradients of fewer roundings of the largest one are what is left of sums that cancel, and never alike."""


@dataclass(frozen=True)
class ModuleDifference:
    """How one module, or a function inside of one, differs between the two.

    Each distance is a share of the size of what is compared: 0 for what is alike, infinite for what has another shape
    or other places that are not finite; None if there is nothing to compare.

    Args:
        name, kind: the module's.
        order: when it ran, in the first one if it is there; None if it never did.
        only_in: 0 or 1 if only the first or the second has it; else None.
        repeated: whether a batch calls it several times.
        entering, output, gradient: the distances of what it was given, of what it gave, and of the gradient there.
        weights, weight_gradients: the largest of its own parameters' distances.
        other_weights: whether its own parameters, of the same type, are not the same to the bit.
        remarks: what else is not the same: shapes, types, calls, mode.
    """

    name: str
    kind: str
    order: int | None
    only_in: int | None = None
    repeated: bool = False
    entering: float | None = None
    output: float | None = None
    gradient: float | None = None
    weights: float | None = None
    weight_gradients: float | None = None
    other_weights: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beginning:
    """Where a difference begins: the module, how large it is there, and what is known of the reason."""

    module: str
    distance: float
    why: str


@dataclass(frozen=True)
class Difference:
    """Two x-rays, compared.

    Args:
        labels: what the two are.
        tolerance: the largest distance that is taken for rounding.
        dtype: the coarsest type that was seen in the two.
        modules: all of them, in the order in which they ran.
        forward, backward: where a difference begins on the way forward, and on the way back; None if nowhere.
        remarks: what is not the same of the whole: the number of batches, the losses.
    """

    labels: tuple[str, str]
    tolerance: float
    dtype: str
    modules: tuple[ModuleDifference, ...]
    forward: Beginning | None
    backward: Beginning | None
    remarks: tuple[str, ...] = ()

    def exceeds(self, *distances: float | None) -> bool:
        """Whether one of the distances is more than rounding."""
        return any(distance is not None and distance > self.tolerance for distance in distances)

    @property
    def half_the_digits(self) -> bool:
        """Whether the tolerance is the one that follows from the type."""
        return self.tolerance == math.sqrt(EPS.get(self.dtype, COARSEST))

    @property
    def diverges(self) -> bool:
        """Whether anything was computed differently; modules that only one of them has do not count."""
        return self.forward is not None or self.backward is not None


def compare(a: Record, b: Record, *, tolerance: float | None = None) -> Difference:
    """Compare two records, module by module.

    The tolerance is half of the digits of the coarsest type in the two, unless one is given: the root of its spacing
    next to 1, so 3.5e-4 for float32 and 0.088 for bfloat16.

    >>> import torch
    >>> from torch import nn
    >>> from normscope.xray.probe import Xray
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
        check_above_zero(tolerance=tolerance)
    dtype, eps = coarsest((a, b))
    limit = math.sqrt(eps) if tolerance is None else tolerance
    modules = tuple(_modules(a, b, eps))
    remarks = tuple(_of_the_whole(a, b))
    found = Difference(_labels(a, b), limit, dtype, modules, None, None, remarks)
    forward, backward = _forward(found), _backward(found, _readers(a) | _readers(b))
    if forward is not None and backward is not None:
        backward = replace(backward, why="which need not be a fault of its own: the way forward is not the same")
    return replace(found, forward=forward, backward=backward)


def _labels(a: Record, b: Record) -> tuple[str, str]:
    names = [record.label or record.model for record in (a, b)]
    return ("the first", "the second") if names[0] == names[1] else (names[0], names[1])


def _modules(a: Record, b: Record, eps: float) -> Iterator[ModuleDifference]:
    """All modules, in the order in which they ran in the first; those that only the second has, as they ran there."""
    ours = {module.name: module for module in a.modules if module.same_as is None}
    theirs = {module.name: module for module in b.modules if module.same_as is None}
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


def _keep_time(one: Module, other: Module, batches: int, other_batches: int) -> bool:
    """Whether prints can be compared though the calls were not as many: each one was the next stretch of a text."""
    once = one.calls == batches and other.calls == other_batches
    return once and all(len(shape) >= 3 for shape in (*one.outputs[:1], *other.outputs[:1]))


def _module(one: Module, other: Module, in_step: bool, noise: float, weight_noise: float) -> ModuleDifference:
    pairs = [
        (p, q) for p in one.parameters for q in other.parameters if p.name == q.name and not (p.same_as or q.same_as)
    ]
    ran = one.order is not None, other.order is not None
    return ModuleDifference(
        name=one.name,
        kind=one.kind,
        order=one.order if ran[0] else other.order,
        entering=distance(one.entering, other.entering),
        output=distance(one.output, other.output, *(one.prints, other.prints) if in_step else ((), ())),
        gradient=distance(one.gradient, other.gradient, one.gradient_prints, other.gradient_prints, noise),
        weights=_largest(distance(p.values, q.values) for p, q in pairs),
        weight_gradients=_largest(distance(p.gradient, q.gradient, noise=weight_noise) for p, q in pairs),
        other_weights=any(p.dtype == q.dtype and p.fingerprint != q.fingerprint for p, q in pairs),
        remarks=tuple(_remarks(one, other, pairs)) if all(ran) else (),
    )


def _largest(distances: Iterator[float | None]) -> float | None:
    return max((found for found in distances if found is not None), default=None)


def _gradient_sizes(record: Record) -> Iterator[float]:
    return (module.gradient.rms for module in record.modules if module.gradient is not None)


def _weight_gradient_sizes(record: Record) -> Iterator[float]:
    return (p.gradient.rms for module in record.modules for p in module.parameters if p.gradient is not None)


def _remarks(one: Module, other: Module, pairs: Sequence[tuple[Parameter, Parameter]]) -> Iterator[str]:
    """What is not the same of a module that ran in both. Of several calls the first one's shape says little."""
    if one.kind != other.kind:
        yield f"{one.kind} and {other.kind}"
    if one.calls == other.calls and one.outputs != other.outputs:
        yield f"gives {_shapes(one.outputs)} and {_shapes(other.outputs)}"
    if one.calls != other.calls:
        yield f"{one.calls} and {other.calls} calls"
    if one.dtype != other.dtype:
        yield f"{one.dtype} and {other.dtype}"
    if one.training != other.training:
        yield f"{'training' if one.training else 'eval'} and {'training' if other.training else 'eval'}"
    for p, q in pairs:
        if p.shape != q.shape:
            yield f"{p.name} {p.shape} and {q.shape}"


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(str(shape) for shape in shapes) or "nothing"


def _of_the_whole(a: Record, b: Record) -> Iterator[str]:
    ran = [{module.name for module in record.ran} for record in (a, b)]
    both = {module.name for module in a.modules} & {module.name for module in b.modules}
    for label, here, there in zip(_labels(a, b), ran, reversed(ran), strict=True):
        if (here - there) & both:
            yield f"modules that ran only in {label}, or were seen only there: {len((here - there) & both)}"
    if a.model != b.model:
        yield f"models: {a.model} and {b.model}"
    for what, one, other in (("batches", a.batches, b.batches), ("backward passes", a.backwards, b.backwards)):
        if one != other:
            yield f"{what}: {one} and {other}"
    losses = [f"{record.losses[0].value:.6g}" for record in (a, b) if record.losses]
    if len(set(losses)) == 2:
        yield f"loss: {' and '.join(losses)}"


def _outer(name: str) -> Iterator[str]:
    """The modules that one is inside of, the innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _forward(found: Difference) -> Beginning | None:
    """The first one that gives something else, and has no other one inside of it that does.

    One that is called at several places may have been given something else only at a later one.
    """
    different = [module for module in found.modules if found.exceeds(module.output)]
    around = {outer for module in different for outer in _outer(module.name)}
    for module in different:
        if module.name not in around and not (module.repeated and found.exceeds(module.entering)):
            assert module.output is not None
            return Beginning(module.name, module.output, _why(found, module))
    return None


def _why(found: Difference, module: ModuleDifference) -> str:
    if math.isinf(module.output or 0) and module.remarks:
        return "; ".join(module.remarks)
    if found.exceeds(module.weights) or module.other_weights:
        return "its weights are not the same"
    if found.exceeds(module.entering):
        inside = next(_outer(module.name), "") or "the model itself"
        first = all(other.entering is None for other in found.modules if (other.order or 0) < (module.order or 0))
        return "it was given something else" if first else f"it was given something else, made in {inside} before it"
    return "it was given the same numbers and has the same weights"


def _backward(found: Difference, readers: dict[str, list[str]]) -> Beginning | None:
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


def _readers(record: Record) -> dict[str, list[str]]:
    """Of each module those that were given its output, in the order in which they ran."""
    readers: dict[str, list[str]] = {}
    for module in record.ran:
        for maker in module.fed_by:
            readers.setdefault(maker, []).append(module.name)
    return readers
