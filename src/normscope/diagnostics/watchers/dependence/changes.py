"""Change inputs of a model, and compare its outputs, and those of its modules, before and after."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from normscope.tracing.experiments import Experiment

_TOLERANCE = 1e-4
"""Smaller changes, relative to the output, are rounding: about a thousand ulps of float32."""


def are_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and difference(x, y) <= _TOLERANCE * _size(x) for x, y in zip(a, b, strict=True)
    )


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().amax()) if a.numel() else 0.0


def _size(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt()) if x.numel() else 0.0


def tolerance_of(x: Tensor) -> float:
    return max(_TOLERANCE, 16 * torch.finfo(x.dtype).eps) * _size(x)


def other_values(x: Tensor, part: Tensor) -> Tensor:
    """Other values of the same kind: for integers, the next larger one that occurs."""
    if x.is_floating_point():
        spread = x.std() if x.numel() > 1 else torch.ones(())
        return part + torch.where(spread > 0, spread, 1.0).to(part)
    values = x.unique()
    if len(values) < 2:
        return part
    made: Tensor = values[(torch.searchsorted(values, part.contiguous()) + 1) % len(values)]
    return made


_Pair = tuple[list[Tensor], list[Tensor]]


def compare_calls(experiment: Experiment, change: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, _Pair, _Pair]]:
    """Yield each call of a module, in the order in which they end: its inputs, and outputs, before and after."""
    calls: list[list[tuple[str, list[Tensor], list[Tensor]]]] = []
    for made in (lambda x: x, change):
        calls.append([])

        def keep(name: str, _: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
            calls[-1].append((name, [x.clone() for x in inputs], [x.clone() for x in outputs]))

        experiment.run(made, visit=keep)
    for (name, *before), (other, *after) in zip(*calls, strict=False):
        if name != other:
            return
        yield name, (before[0], after[0]), (before[1], after[1])


def changing_sample(x: Tensor, index: int, axis: int = 0) -> Callable[[Tensor], Tensor]:
    part, other = x.select(axis, index), x.select(axis, (index + 1) % x.shape[axis])
    values = other_values(x, part) if torch.equal(part, other) else other

    def change(given: Tensor) -> Tensor:
        if given.shape != x.shape or given.dtype != x.dtype or not torch.equal(given, x):
            return given
        made = given.clone()
        made.select(axis, index).copy_(values)
        return made

    return change


def has_time_first(x: Tensor, experiment: Experiment, base: list[Tensor]) -> bool:
    """Whether the second axis holds samples instead: changing one of them changes no other output."""
    if x.shape[1] < 2:
        return False
    after = experiment.run(changing_sample(x, 0, axis=1))
    for a, b in zip(base, after, strict=True):
        axes = [axis for axis in (1, 0) if axis < a.dim() and a.shape[axis] == x.shape[1] and a.shape == b.shape]
        for axis in axes:
            rest = slice(1, None)
            first, others = (
                difference(a.movedim(axis, 0)[part], b.movedim(axis, 0)[part]) for part in (slice(0, 1), rest)
            )
            if first > tolerance_of(a) >= others:
                return True
    return False
