"""Find out what the outputs of a model depend on: later tokens, other samples, positions.

The arguments of the first call with gradients are kept. After the block, a copy of the model runs on changed versions
of them, in eval mode.
"""

import math
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.collectives import has_other_ranks
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.tensors import is_readable
from normscope.diagnostics.stats.dependence import DependenceRecord, LeakRecord, MixingRecord
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.experiments import Experiment, copy_input
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_MAX_ELEMENTS = 1 << 21
"""Elements of the arguments; of larger ones only the first samples are kept, if all have a batch axis."""

_FEW_SAMPLES = 8
_MAX_BUFFER_BYTES = 1 << 28
_MAX_SECONDS = 3.0
"""If one forward pass takes longer, there are no experiments: there would be about ten more."""

_MAX_TARGETS = 4
_MAX_CALLED = 3
"""Models that are called from outside, such as the two of a GAN, of which a call is kept."""

_EXACT = 0.99
"""Fraction of targets that are the next tokens; a few may be changed by masks and noise."""

_MIN_VARIED = 0.2
"""Fraction of tokens that differ from the one before. In constant sequences every token is the next token."""

_TOLERANCE = 1e-4
"""Smaller changes, relative to the output, are rounding: about a thousand ulps of float32."""

_POSITIONS = re.compile(r"(^|[._])(w?pe|pos|positions?|pos(ition)?(al)?_?(emb|enc)\w*)($|[._])", re.IGNORECASE)
_CLASS_OF_POSITIONS = re.compile(r"posi?tion", re.IGNORECASE)
_MIN_POSITIONS = 1e-3
"""Position embeddings below this are still close to a zero initialization."""

_TARGET_ARGUMENT = {"gather": (2, "index")}
_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "gather"),
)
_REDUCING = (
    "softmax",
    "normalize",
    "log_softmax",
    "var",
    "std",
    "norm",
    "var_mean",
    "std_mean",
    "linalg_vector_norm",
    "logsumexp",
)


@dataclass
class _Called:
    """A call of a model: copies of its arguments, and of the targets of the losses after it."""

    module: nn.Module
    args: Any
    kwargs: Any
    count: int
    """The size of the first axis of the first argument, of which perhaps fewer are kept."""
    targets: list[tuple[Tensor, int | None, bool]] = field(default_factory=list)
    """Targets, the ignored index, and whether all of them are known to count: the loss is reduced in the call."""
    is_open: bool = True
    batches: set[float] = field(default_factory=set)

    @property
    def tensors(self) -> list[Tensor]:
        return list(tensors_in((self.args, self.kwargs)))


class DependenceWatcher(Watcher):
    """Keeps one call of each model that is called from outside, and experiments with it after the block."""

    functions = (*_LOSSES, *_REDUCING, "mean", "sub", "div")

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._calls: dict[str, _Called | None] = {}
        self._last: weakref.ref[_Called] | None = None
        self._batch_reductions: dict[str, str] = {}
        self._means = TensorTable[str]()

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if outer or not torch.is_grad_enabled():
            return
        name = frame.accumulator.name
        previous = self._last() if self._last is not None else None
        if previous is not None and previous.targets:
            previous.is_open = False
        known = self._calls.get(name)
        if name not in self._calls and len(self._calls) < _MAX_CALLED and _is_safe(self.watched, frame.module):
            self._calls[name] = known = _copy_call(frame.module, args, kwargs)
            self._last = None if known is None else weakref.ref(known)
        if known is not None and len(known.batches) < 3:
            first = next(tensors_in((args, kwargs)), None)
            known.batches.add(float(first.detach().double().sum()) if first is not None and is_readable(first) else 0.0)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if call.name not in _LOSSES:
            if call.frames:
                self._see_reduction(call, result)
            return
        known = self._last() if self._last is not None else None
        if known is None or not known.is_open or len(known.targets) >= _MAX_TARGETS:
            return
        place, name = _TARGET_ARGUMENT.get(call.name, (1, "target"))
        target = call.args[place] if len(call.args) > place else call.kwargs.get(name)
        if isinstance(target, Tensor) and is_readable(target) and target.numel() <= _MAX_ELEMENTS:
            ignored = call.kwargs.get("ignore_index", -100) if call.name in ("cross_entropy", "nll_loss") else None
            counts = call.name != "gather" and call.kwargs.get("reduction", "mean") != "none"
            known.targets.append((target.detach().clone(), ignored, counts))

    def _see_reduction(self, call: FunctionCall, result: Any) -> None:
        """A function that reduces the first axis, or subtracts, or divides by, a mean over it."""
        if call.name in ("sub", "div"):
            if len(self._means) and any(isinstance(x, Tensor) and self._means.get(x) for x in call.args[1:2]):
                self._batch_reductions.setdefault(call.frames[-1].accumulator.name, "mean")
            return
        x, dim = (
            call.args[0] if call.args else None,
            call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None),
        )
        if call.name in ("norm", "linalg_vector_norm", "normalize"):
            dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else None)
        dims = dim if isinstance(dim, list | tuple) else [dim]
        if isinstance(x, Tensor) and x.dim() >= 2 and (0 in dims or -x.dim() in dims):
            if call.name != "mean":
                self._batch_reductions.setdefault(call.frames[-1].accumulator.name, call.name)
            elif isinstance(result, Tensor):
                self._means.put(result, "mean")

    def finish(self) -> dict[str, Any]:
        found = []
        for name, called in self._calls.items():
            if called is not None:
                try:
                    found.append(_examine(name, called, self._batch_reductions))
                except Exception:  # the model cannot run on changed inputs, or not twice
                    continue
        self._calls.clear()
        self._means.clear()
        return {"dependence": tuple(record for record in found if record is not None)}


def _is_safe(watched: Watched, module: nn.Module) -> bool:
    """Whether a copy may run, without the other ranks, and is not too large."""
    if watched.session.has_dtensors or has_other_ranks() or isinstance(module, torch.jit.ScriptModule):
        return False
    return sum(buffer.nbytes for buffer in module.buffers()) <= _MAX_BUFFER_BYTES


def _copy_call(module: nn.Module, args: Any, kwargs: Any) -> _Called | None:
    tensors = list(tensors_in((args, kwargs)))
    if not tensors or not all(t.dtype == torch.bool or is_readable(t) for t in tensors):
        return None
    count = len(tensors[0]) if tensors[0].dim() else 1
    is_large = sum(tensor.numel() for tensor in tensors) > _MAX_ELEMENTS
    if is_large and not _have_samples(tensors):
        return None
    try:
        args, kwargs = copy_input((args, kwargs), lambda x: x[:_FEW_SAMPLES] if is_large else x)
    except TypeError:
        return None
    return _Called(module, args, kwargs, count)


def _have_samples(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.dim() and len(tensor) == len(tensors[0]) for tensor in tensors)


def _with_few_samples(called: _Called) -> _Called:
    """Keep the first samples, and another number than there are tokens, to tell the two axes apart."""
    tensors = called.tensors
    if not _have_samples(tensors) or tensors[0].dim() < 2:
        return called
    count = min(len(tensors[0]), _FEW_SAMPLES)
    if tensors[0].shape[1] == count > 3:
        count -= 1
    args, kwargs = copy_input((called.args, called.kwargs), lambda x: x[:count])
    return replace(called, args=args, kwargs=kwargs)


def _examine(name: str, called: _Called, reductions: dict[str, str]) -> DependenceRecord | None:
    few = _with_few_samples(called)
    try:
        experiment = Experiment(few.module, few.args, few.kwargs)
        start = time.perf_counter()
        base = experiment.run()
    except Exception:  # another argument, such as a mask or a state, has the size of the whole batch
        few, experiment = called, Experiment(called.module, called.args, called.kwargs)
        start = time.perf_counter()
        base = experiment.run()
    called = few
    if not base or not all(bool(tensor.isfinite().all()) for tensor in base):
        return None
    if time.perf_counter() - start > _MAX_SECONDS:
        return None
    sequences = list(_find_sequences(called))
    if sequences and not any(True for x in base for _ in _over_time(x, sequences[0].tensor, sequences[0].axis)):
        # In eval mode, the model returns the last token only, or something else.
        experiment = Experiment(called.module, called.args, called.kwargs, training=True)
        base = experiment.run()
    is_random = not _equal(base, experiment.run(seed=1))
    # A decoder that repeats what an encoder has read has two tensors with the next tokens, and may look ahead in one.
    leaks = [_find_leak(name, experiment, base, sequence) for sequence in sequences]
    found = [leak for leak in leaks if leak is not None]
    leak = next((leak for leak in found if isinstance(leak, LeakRecord)), None) if all(found) else None
    is_time_first = sequences[0].axis == 0 if sequences else None
    mixing = _find_mixing(name, called, experiment, base, reductions, is_time_first)
    unused, along_batch = None, None
    if not is_random:
        unused = _find_unused_positions(name, called, experiment, base, is_time_first)
        along_batch = _find_positions_along_batch(name, called, experiment, base) if mixing is None else None
    return DependenceRecord(name, bool(sequences), leak, mixing, unused, along_batch)


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and _difference(x, y) <= _TOLERANCE * _size(x) for x, y in zip(a, b, strict=True)
    )


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().amax()) if a.numel() else 0.0


def _size(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt()) if x.numel() else 0.0


def _tolerance(x: Tensor) -> float:
    return max(_TOLERANCE, 16 * torch.finfo(x.dtype).eps) * _size(x)


# Next tokens


@dataclass(frozen=True)
class _Sequence:
    """The tensor whose next tokens are the targets; its axis of time; the positions that have a target."""

    tensor: Tensor
    axis: int
    counted: Tensor

    @property
    def length(self) -> int:
        return self.tensor.shape[self.axis]


def _find_sequences(called: _Called) -> Iterator[_Sequence]:
    for x in called.tensors:
        for target, ignored, counts in called.targets:
            axes = [1, 0] if x.dim() == 2 else [axis for axis in (1, 2, 0) if axis < x.dim()]
            for axis in axes if x.dim() >= 2 and (counts or not x.is_floating_point()) else ():
                counted = _next_tokens(x, target, ignored, axis, called.count)
                if counted is not None:
                    yield _Sequence(x, axis, counted if counts else torch.zeros_like(counted))
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


def _over_time(x: Tensor, like: Tensor, axis: int) -> Iterator[Tensor]:
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
    for a, b in zip(_over_time(before, like, axis), _over_time(after, like, axis), strict=True):
        change = (b - a).abs().amax(1)
        if found is None or float(change[:token].amax()) < float(found[:token].amax()):
            found = change
    return found


def _find_leak(name: str, experiment: Experiment, base: list[Tensor], sequence: _Sequence) -> LeakRecord | bool | None:
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
            has_effect = has_effect or float(changes.amax()) > _tolerance(a)
            early = changes.cpu()[:token] * counted[:token]
            if float(early.amax()) > _tolerance(a):
                module = _leaking_module(name, experiment, change, sequence, token)
                earliest = int((early > _tolerance(a)).nonzero()[0])
                return LeakRecord(module, token, earliest, float(early.amax() / changes.amax().cpu()))
    return False if has_effect else None


def _changing_token(sequence: _Sequence, token: int) -> Callable[[Tensor], Tensor]:
    """Change a token of all sequences, only in the tensor of the tokens."""

    def change(x: Tensor) -> Tensor:
        if x is not sequence.tensor:
            return x
        made = x.clone()
        made.select(sequence.axis, token).copy_(_other_values(x, x.select(sequence.axis, token)))
        return made

    return change


def _other_values(x: Tensor, part: Tensor) -> Tensor:
    """Other values of the same kind: for integers, the next larger one that occurs."""
    if x.is_floating_point():
        spread = x.std() if x.numel() > 1 else torch.ones(())
        return part + torch.where(spread > 0, spread, 1.0).to(part)
    values = x.unique()
    if len(values) < 2:
        return part
    made: Tensor = values[(torch.searchsorted(values, part.contiguous()) + 1) % len(values)]
    return made


def _leaking_module(
    name: str, experiment: Experiment, change: Callable[[Tensor], Tensor], sequence: _Sequence, token: int
) -> str:
    """The innermost module whose output before the token changes, while its inputs there do not."""

    def is_early(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool | None:
        found: bool | None = None
        for a, b in zip(before, after, strict=False):
            changes = _changes(a, b, sequence.tensor, sequence.axis, token) if a.is_floating_point() else None
            if changes is not None:
                found = bool(found) or float(changes[:token].amax()) > _tolerance(a)
        return found

    for inner, inputs, outputs in _compared(experiment, change):
        if is_early(*outputs) and not is_early(*inputs):
            return _join(name, inner)
    return name


_Pair = tuple[list[Tensor], list[Tensor]]


def _compared(experiment: Experiment, change: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, _Pair, _Pair]]:
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


def _join(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner else outer or inner


# Samples


def _find_mixing(
    name: str,
    called: _Called,
    experiment: Experiment,
    base: list[Tensor],
    reductions: dict[str, str],
    is_time_first: bool | None,
) -> MixingRecord | None:
    """Change the first sample, and compare the outputs of the others."""
    x = _only_input(called)
    if x is None or len(x) < 2:
        return None
    count = len(x)
    change = _changing_sample(x, 0)
    after = experiment.run(change)
    for a, b in zip(base, after, strict=True):
        if a.dim() == 0 or len(a) != count or a.shape != b.shape or (a.dim() >= 2 and a.shape[1] == count):
            continue
        change_of_others, own = _difference(a[1:], b[1:]), _difference(a[:1], b[:1])
        if not change_of_others > _tolerance(a) or (
            is_time_first if is_time_first is not None else _is_time_first(x, experiment, base)
        ):
            continue
        module, kind = _mixing_module(experiment, change, count)
        full = _join(name, module)
        inner = dict(called.module.named_modules()).get(module)
        if "batch" in kind.lower():  # a batch norm without running statistics, or the standard deviation of a batch
            continue
        return MixingRecord(
            full,
            kind,
            change_of_others / max(own, change_of_others),
            x.dim() + (not x.is_floating_point()),  # an embedding adds one
            len(called.batches),
            reductions.get(full),
            getattr(inner, "batch_first", None) is False,
        )
    return None


def _only_input(called: _Called) -> Tensor | None:
    """The input of a call with one; masks, and integers such as positions beside it, are allowed."""
    tensors = [tensor for tensor in called.tensors if tensor.dim()]
    if not tensors or tensors[0].dim() < 2 or tensors[0].dtype == torch.bool:
        return None
    x, *others = tensors
    allowed = all(
        len(o) == len(x) and not o.is_floating_point() and o.shape[1:] in (x.shape[1:], x.shape[1:2]) for o in others
    )
    return x if allowed else None


def _changing_sample(x: Tensor, index: int, axis: int = 0) -> Callable[[Tensor], Tensor]:
    part, other = x.select(axis, index), x.select(axis, (index + 1) % x.shape[axis])
    values = _other_values(x, part) if torch.equal(part, other) else other

    def change(given: Tensor) -> Tensor:
        if given.shape != x.shape or given.dtype != x.dtype or not torch.equal(given, x):
            return given
        made = given.clone()
        made.select(axis, index).copy_(values)
        return made

    return change


def _is_time_first(x: Tensor, experiment: Experiment, base: list[Tensor]) -> bool:
    """Whether the second axis holds samples instead: changing one of them changes no other output."""
    if x.shape[1] < 2:
        return False
    after = experiment.run(_changing_sample(x, 0, axis=1))
    for a, b in zip(base, after, strict=True):
        axes = [axis for axis in (1, 0) if axis < a.dim() and a.shape[axis] == x.shape[1] and a.shape == b.shape]
        for axis in axes:
            rest = slice(1, None)
            first, others = (
                _difference(a.movedim(axis, 0)[part], b.movedim(axis, 0)[part]) for part in (slice(0, 1), rest)
            )
            if first > _tolerance(a) >= others:
                return True
    return False


def _mixing_module(experiment: Experiment, change: Callable[[Tensor], Tensor], count: int) -> tuple[str, str]:
    def others_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool | None:
        found: bool | None = None
        for a, b in zip(before, after, strict=False):
            if a.dim() and len(a) == count and a.shape == b.shape:
                tolerance = _tolerance(a) if a.is_floating_point() else 0.0
                found = bool(found) or _difference(a[1:].double(), b[1:].double()) > tolerance
        return found

    for name, inputs, outputs in _compared(experiment, change):
        if others_change(*inputs) is False and others_change(*outputs):
            return name, type(experiment.module(name)).__name__
    return "", type(experiment.module("")).__name__


# Positions


def _find_unused_positions(
    name: str, called: _Called, experiment: Experiment, base: list[Tensor], is_time_first: bool | None
) -> str | None:
    """Whether positions do nothing: other ones give the same outputs, or all tokens have the same one.

    Otherwise exchange tokens: if only their outputs are exchanged, positions are not used.
    """
    x, holder = _only_input(called), _module_of_positions(called.module)
    if holder is not None and (
        _equal(base, experiment.run(edit=lambda model: _reverse_tables(model.get_submodule(holder)))[: len(base)])
        or _has_one_position(experiment, holder)
    ):
        return _join(name, holder)
    if x is None or holder is None or x.dim() > 3 or x.shape[1] < 4 or (x.dim() == 2 and x.is_floating_point()):
        return None
    if _is_time_first(x, experiment, base) if is_time_first is None else is_time_first:
        return None
    last = x.shape[1] - 1
    for first, second in ((1, last), (1, last // 2), (last // 2, last)):
        order = torch.arange(x.shape[1], device=x.device)
        order[first], order[second] = second, first
        if first == second or torch.equal(x[:, first], x[:, second]):
            return None

        def exchange(given: Tensor, order: Tensor = order) -> Tensor:
            return given[:, order] if given.shape[:2] == x.shape[:2] else given

        after = experiment.run(exchange)
        for a, b in zip(base, after, strict=True):
            has_time = a.dim() >= 2 and a.shape[1] == x.shape[1] and a.shape[0] == x.shape[0]
            if a.shape != b.shape or _difference(a[:, order] if has_time else a, b) > _tolerance(a) / 10:
                return None
    return _join(name, holder)


def _reverse_tables(holder: nn.Module) -> None:
    """Reverse the order of the positions of a copied module."""
    holders: list[dict[str, Any]] = [holder._parameters, holder._buffers]
    for tensors in holders:
        for own, tensor in list(tensors.items()):
            is_table = isinstance(tensor, Tensor) and tensor.dim() >= 2 and tensor.is_floating_point()
            if is_table and (_POSITIONS.search(own) or isinstance(holder, nn.Embedding)):
                changed = tensor.detach().flip(tuple(range(tensor.dim())))
                tensors[own] = nn.Parameter(changed) if isinstance(tensor, nn.Parameter) else changed


def _has_one_position(experiment: Experiment, holder: str) -> bool:
    """Whether an embedding of positions gets one index for all tokens, in each call."""
    found: list[bool] = []

    def visit(name: str, module: nn.Module, inputs: list[Tensor], _: list[Tensor]) -> None:
        if name == holder and type(module) is nn.Embedding and inputs and inputs[0].numel() >= 4:
            found.append(bool((inputs[0] == inputs[0].flatten()[0]).all()))

    experiment.run(visit=visit)
    return bool(found) and all(found)


def _module_of_positions(model: nn.Module) -> str | None:
    """The module that holds positions: an embedding, a parameter or a table of sines, that is not zero."""
    name: str
    for name, module in model.named_modules():
        tensors: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
        for own, tensor in tensors.items():
            full = _join(name, own)
            is_named = _POSITIONS.search(full) or _CLASS_OF_POSITIONS.search(type(module).__name__)
            if tensor is None or tensor.dim() < 2 or not tensor.is_floating_point() or not is_named:
                continue
            if float(tensor.detach().abs().amax()) >= _MIN_POSITIONS and "relative" not in full:
                return name
    return None


def _find_positions_along_batch(name: str, called: _Called, experiment: Experiment, base: list[Tensor]) -> str | None:
    """Move all samples by one: if their outputs do not only move, something is added by the index of the sample."""
    x, holder = _only_input(called), _module_of_positions(called.module)
    if x is None or holder is None or len(x) < 2:
        return None
    count = len(x)

    def roll(given: Tensor) -> Tensor:
        return given.roll(1, 0) if given.dim() and len(given) == count else given

    after = experiment.run(roll)
    for a, b in zip(base, after, strict=True):
        if a.dim() and len(a) == count and a.shape == b.shape and _difference(a.roll(1, 0), b) > _tolerance(a):
            return None if _is_time_first(x, experiment, base) else _join(name, holder)
    return None
