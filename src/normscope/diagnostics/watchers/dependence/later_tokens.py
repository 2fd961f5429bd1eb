"""Find outputs that depend on later tokens, in models that predict the next one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.stats.dependence import LeakRecord
from normscope.diagnostics.watchers.dependence.changes import compare_calls, other_values, tolerance_of
from normscope.diagnostics.watchers.dependence.kept_call import KeptCall
from normscope.tracing.experiments import Experiment

_EXACT = 0.99
"""Fraction of targets that are the next tokens; a few may be changed by masks and noise."""

_MIN_VARIED = 0.2
"""Fraction of tokens that differ from the one before. In constant sequences every token is the next token."""


@dataclass(frozen=True)
class TokenSequence:
    """The tensor whose next tokens are the targets; its axis of time; the positions that have a target."""

    tensor: Tensor
    axis: int
    counted: Tensor

    @property
    def length(self) -> int:
        return self.tensor.shape[self.axis]


def find_sequences(called: KeptCall) -> Iterator[TokenSequence]:
    for x in called.tensors:
        for target, ignored, counts in called.targets:
            axes = [1, 0] if x.dim() == 2 else [axis for axis in (1, 2, 0) if axis < x.dim()]
            for axis in axes if x.dim() >= 2 and (counts or not x.is_floating_point()) else ():
                counted = _next_tokens(x, target, ignored, axis, called.count)
                if counted is not None:
                    yield TokenSequence(x, axis, counted if counts else torch.zeros_like(counted))
                    break


def _next_tokens(x: Tensor, target: Tensor, ignored: int | None, axis: int, count: int) -> Tensor | None:
    """Whether the targets are those of the next positions of x: then return which positions have a target.

    x holds the first of `count` items along the first axis.
    """
    length = x.shape[axis]
    if length < 3 or x.is_floating_point() != target.is_floating_point() or x.dtype == torch.bool:
        return None
    following = x.narrow(axis, 1, length - 1)
    whole = (count, *x.shape[1:])
    shorter = tuple(size - (i == axis) for i, size in enumerate(whole))
    if target.numel() == math.prod(whole):
        y = target.reshape(whole)[: len(x)].narrow(axis, 0, length - 1)
    elif target.numel() == math.prod(shorter):
        y = target.reshape(shorter)[: len(following)]
    else:
        return None
    counted = torch.ones_like(y, dtype=torch.bool) if ignored is None else y != ignored
    if int(counted.sum()) < length or float((y == following)[counted].float().mean()) < _EXACT:
        return None
    if float((following != x.narrow(axis, 0, length - 1)).float().mean()) < _MIN_VARIED:
        return None
    counted = counted.movedim(axis, 0).flatten(1).any(1)
    return torch.cat([counted, counted[-1:]])


def over_time(x: Tensor, like: Tensor, axis: int) -> Iterator[Tensor]:
    """Yield views of an output or activation, with its time axis first; several if it may be one of two axes."""
    length = like.shape[axis]
    batch = like.shape[1 - axis] if axis < 2 else like.shape[0]
    lengths = (length, length - 1)
    if not x.is_floating_point() or x.dim() < 2:
        return
    for candidate in dict.fromkeys((min(axis, x.dim() - 1), *range(x.dim()))):
        if x.shape[candidate] in lengths and x.shape[0 if candidate else 1] == batch:  # unlike the state of an RNN
            yield x.movedim(candidate, 0).flatten(1)
    for size in lengths:
        if len(x) == batch * size and axis == 1:
            yield x.unflatten(0, (batch, size)).movedim(1, 0).flatten(1)
        elif len(x) == batch * size and axis == 0:
            yield x.unflatten(0, (size, batch)).flatten(1)


def _changes(before: Tensor, after: Tensor, like: Tensor, axis: int, token: int) -> Tensor | None:
    """How much each position changed, of the view in which positions before the token changed least."""
    if before.shape != after.shape:
        return None
    found: Tensor | None = None
    for a, b in zip(over_time(before, like, axis), over_time(after, like, axis), strict=True):
        change = (b - a).abs().amax(1)
        if found is None or float(change[:token].amax()) < float(found[:token].amax()):
            found = change
    return found


def find_leak(
    name: str, experiment: Experiment, base: list[Tensor], sequence: TokenSequence
) -> LeakRecord | bool | None:
    """Return an output that depends on later tokens; False if none does; None if none depends on any token."""
    has_effect = False
    if not bool(sequence.counted.any()):  # only some targets count, and it is not known which
        counted = torch.arange(sequence.length) >= sequence.length // 2
    else:
        counted = sequence.counted.cpu()
    for token in (sequence.length - 1, sequence.length // 2):
        if not bool(counted[:token].any()):
            continue
        change = _changing_token(sequence, token)
        after = experiment.run(change)
        for a, b in zip(base, after, strict=True):
            changes = _changes(a, b, sequence.tensor, sequence.axis, token)
            if changes is None or not bool(changes.isfinite().all()):
                continue
            has_effect = has_effect or float(changes.amax()) > tolerance_of(a)
            early = changes.cpu()[:token] * counted[:token]
            if float(early.amax()) > tolerance_of(a):
                module = _leaking_module(name, experiment, change, sequence, token)
                earliest = int((early > tolerance_of(a)).nonzero()[0])
                return LeakRecord(module, token, earliest, float(early.amax() / changes.amax().cpu()))
    return False if has_effect else None


def _changing_token(sequence: TokenSequence, token: int) -> Callable[[Tensor], Tensor]:
    """Change a token of all sequences, only in the tensor of the tokens."""

    def change(x: Tensor) -> Tensor:
        if x is not sequence.tensor:
            return x
        made = x.clone()
        made.select(sequence.axis, token).copy_(other_values(x, x.select(sequence.axis, token)))
        return made

    return change


def _leaking_module(
    name: str, experiment: Experiment, change: Callable[[Tensor], Tensor], sequence: TokenSequence, token: int
) -> str:
    """The innermost module whose output before the token changes, while its inputs there do not."""

    def is_early(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool | None:
        found: bool | None = None
        for a, b in zip(before, after, strict=False):
            changes = _changes(a, b, sequence.tensor, sequence.axis, token) if a.is_floating_point() else None
            if changes is not None:
                found = bool(found) or float(changes[:token].amax()) > tolerance_of(a)
        return found

    for inner, inputs, outputs in compare_calls(experiment, change):
        if is_early(*outputs) and not is_early(*inputs):
            return join_names(name, inner)
    return name
