"""Watch copies of a module: target networks, averages of weights, teachers; and the targets they compute."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import copy_elements, is_measurable, sample_items
from normscope.diagnostics.module_names import is_inside
from normscope.diagnostics.stats.loop import BootstrapRecord, CopyRecord
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.sharded import local_part
from normscope.tracing.tracer import FunctionCall

COPY_NAME = re.compile(
    r"(^|[._])(target|tgt|ema|teacher|momentum|avg|averaged?|shadow|swa|slow|frozen|old|ref|reference)(?=$|[._\d]|net)"
    r"|(encoder|backbone|net|network|model|branch)_k$|^key_encoder$|(target|teacher|momentum|shadow|reference)(net|network|encoder|model|critic|actor|q)",
    re.IGNORECASE,
)
"""Names of modules that are copies of others, by convention."""

_SAMPLE = 256
"""Elements of each weight that are compared."""

_MAX_WEIGHTS = 3
_MAX_PAIRS = 8

_REGRESSIONS = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")

_PASSING = re.compile(r"(Unsqueeze|Squeeze|View|Reshape|ToCopy|Expand|Clone|T|Transpose|Permute)Backward\d")
"""Nodes of functions that return the values of their input."""

_MIXED = 0.01
"""Relative error below which a change is a step towards the copy."""


@dataclass
class _Pair:
    name: str
    original_name: str
    weights: Sequence[tuple[Tensor, Tensor]]
    """Weights of the copy, and those of the original."""
    originals: set[int]
    copies: set[int]
    before: list[Tensor] = field(default_factory=list)
    """Of the copy, at the last step."""
    after_step: list[Tensor] = field(default_factory=list)
    """Of the original, after the last step."""
    versions: list[int] = field(default_factory=list)
    was_equal: bool = False
    is_touched: bool = False
    original_steps: int = 0
    moved: int = 0
    written: int = 0
    equal: int = 0
    original_mixed: int = 0
    in_optimizer: bool = False


class CopyWatcher(Watcher):
    """Compare copies with their originals between the steps of the originals."""

    functions = ("data", "copy", "lerp", *_REGRESSIONS)

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._pairs: list[_Pair] = []
        self._same: list[CopyRecord] = []
        self._touched: dict[int, _Pair] = {}
        self._bootstraps: dict[str | None, BootstrapRecord] = {}

    def start(self) -> None:
        for name, original, is_same in _pairs(self.watched.model):
            if is_same:
                self._same.append(CopyRecord(name, original, is_same=True))
            elif len(self._pairs) < _MAX_PAIRS:
                self._add(name, original)

    def _add(self, name: str, original_name: str) -> None:
        copied, original = self.watched.model.get_submodule(name), self.watched.model.get_submodule(original_name)
        weights = [
            (a, b)
            for a, b in zip(copied.parameters(), original.parameters(), strict=True)
            if not is_lazy(a) and not is_lazy(b) and is_measurable(local_part(a)) and is_measurable(local_part(b))
        ]
        weights = [pair for pair in weights if pair[0].dim() >= 2] or weights
        weights = sample_items(weights, _MAX_WEIGHTS)
        if not weights:
            return
        pair = _Pair(
            name, original_name, weights, set(map(id, original.parameters())), set(map(id, copied.parameters()))
        )
        pair.before, pair.versions = [_sample(a) for a, _ in weights], [a._version for a, _ in weights]
        pair.after_step = [_sample(b) for _, b in weights]
        pair.was_equal = _all_equal(pair.before, pair.after_step) and any(
            x.numel() > 1 and x.std() > 0 for x in pair.before
        )
        self._pairs.append(pair)
        self._touched.update(dict.fromkeys(pair.copies, pair))

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if call.name in _REGRESSIONS:
            self._take_regression(call)
        elif call.args and not call.frames and id(call.args[0]) in self._touched:
            self._touched[id(call.args[0])].is_touched = True

    def _take_regression(self, call: FunctionCall) -> None:
        target = call.args[1] if len(call.args) > 1 else call.kwargs.get("target")
        if not isinstance(target, Tensor) or target.grad_fn is None or not _is_bootstrapped(target.grad_fn):
            return
        line = source_line()
        known = self._bootstraps.get(line) or BootstrapRecord(call.name, 0, line)
        self._bootstraps[line] = replace(known, calls=known.calls + 1)

    def before_step(self, optimizer: Optimizer) -> None:
        held = set(map(id, parameters_of(optimizer))) if self._pairs else set()
        for pair in self._pairs:
            pair.in_optimizer = pair.in_optimizer or not held.isdisjoint(pair.copies)
            if not held.isdisjoint(pair.originals):
                self._compare(pair)

    def _compare(self, pair: _Pair) -> None:
        """Look at what happened since the last step of the original."""
        now, original = [_sample(a) for a, _ in pair.weights], [_sample(b) for _, b in pair.weights]
        versions = [a._version for a, _ in pair.weights]
        has_moved = not _all_equal(now, pair.before)
        if pair.original_steps:
            pair.written += pair.is_touched or versions != pair.versions or has_moved
            pair.moved += has_moved
            pair.equal += has_moved and _all_equal(now, original)
            pair.original_mixed += not has_moved and _is_mixed(pair.after_step, original, now)
        pair.before, pair.versions, pair.is_touched = now, versions, False

    def after_step(self, optimizer: Optimizer) -> None:
        held = set(map(id, parameters_of(optimizer))) if self._pairs else set()
        for pair in self._pairs:
            if not held.isdisjoint(pair.copies):  # what the step changed was not written by the loop
                pair.before = [_sample(a) for a, _ in pair.weights]
                pair.versions = [a._version for a, _ in pair.weights]
            if not held.isdisjoint(pair.originals):
                after = [_sample(b) for _, b in pair.weights]
                pair.original_steps += not _all_equal(after, pair.after_step)
                pair.after_step = after

    def stop(self) -> None:
        for pair in self._pairs:
            self._compare(pair)

    def finish(self) -> dict[str, Any]:
        known = self.watched.parameters.tracked
        records = list(self._same)
        for pair in self._pairs:
            gradients = [known[p].gradient for p in pair.copies if p in known]
            records.append(
                CopyRecord(
                    module=pair.name,
                    original=pair.original_name,
                    was_equal=pair.was_equal,
                    original_steps=pair.original_steps,
                    moved=pair.moved,
                    written=pair.written,
                    equal=pair.equal,
                    original_mixed=pair.original_mixed,
                    got_gradient=any(gradient is not None and gradient.rms > 0 for gradient in gradients),
                    in_optimizer=pair.in_optimizer,
                )
            )
        self._pairs.clear()
        self._touched.clear()
        return {"copies": tuple(records), "bootstraps": tuple(self._bootstraps.values())}


def _pairs(model: nn.Module) -> Iterator[tuple[str, str, bool]]:
    """Copies, their originals, and whether both are the same: by name and by the shapes of their parameters."""
    everything = dict(model.named_modules(remove_duplicate=False))
    named = {name for name in everything if COPY_NAME.search(name.rpartition(".")[2])}
    outermost = [name for name in named if not any(is_inside(name, other) for other in named if other != name)]
    shapes = {name: _shapes(module) for name, module in everything.items()}
    for name in sorted(outermost):
        inner = [name, *(n for n in everything if n.startswith(f"{name}."))]  # an average may wrap the copy
        for own in inner[:2]:
            candidates = [
                other
                for other in everything
                if shapes[own]
                and shapes[other] == shapes[own]
                and not is_inside(other, name)
                and not any(is_inside(other, copy) for copy in outermost)
                and not is_inside(name, other)
            ]
            if candidates:
                original = _closest(own, candidates, everything)
                yield own, original, _is_same(everything[own], everything[original])
                break


def _closest(name: str, candidates: list[str], modules: dict[str, nn.Module]) -> str:
    """The original: the one with equal weights, otherwise that of the most similar name."""
    first = next(modules[name].parameters())
    plain = COPY_NAME.sub("", name).replace("_", "").replace(".", "")

    def rank(other: str) -> tuple[bool, bool, int]:
        parameter = next(modules[other].parameters())
        is_equal = is_measurable(first) and is_measurable(parameter) and torch.equal(first, parameter)
        return not is_equal, plain != other.replace("_", "").replace(".", ""), len(other)

    return min(candidates, key=rank)


def _is_same(a: nn.Module, b: nn.Module) -> bool:
    return all(p is q for p, q in zip(a.parameters(), b.parameters(), strict=True))


def _shapes(module: nn.Module) -> tuple[Any, ...]:
    """Names and shapes of all parameters; empty without a matrix."""
    found = tuple((name, tuple(p.shape)) for name, p in module.named_parameters() if not is_lazy(p))
    return found if any(len(shape) >= 2 for _, shape in found) else ()


def _sample(weight: Tensor) -> Tensor:
    return copy_elements(weight, _SAMPLE).double()


def _all_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _is_mixed(before: list[Tensor], after: list[Tensor], copied: list[Tensor]) -> bool:
    """Whether weights moved towards those of the copy, by the same fraction in each place."""
    x, y, z = (torch.cat(part) for part in (before, after, copied))
    way, step = z - x, y - x
    length = float(way.dot(way))
    if length == 0 or not step.any():
        return False
    fraction = float(step.dot(way)) / length
    return 0 < fraction < 1 - _MIXED and float((step - fraction * way).norm()) <= _MIXED * float(step.norm())


def _is_bootstrapped(node: Any) -> bool:
    """Whether a graph node adds a constant and a factor times an output, as reward + discount * value does."""
    node = _skip(node)
    if type(node).__name__ != "AddBackward0":
        return False
    inputs = [inner for inner, _ in node.next_functions]
    product = _skip(next((inner for inner in inputs if inner is not None), None))
    if inputs.count(None) != 1 or product is None:
        return False
    while type(product).__name__ == "MulBackward0" and [inner for inner, _ in product.next_functions].count(None) == 1:
        product = _skip(next(inner for inner, _ in product.next_functions if inner is not None))
        if type(product).__name__ != "MulBackward0":
            return product is not None and type(product).__name__ != "AccumulateGrad"
    return type(product).__name__ in ("MaxBackward0", "AmaxBackward0")


def _skip(node: Any) -> Any:
    while node is not None and _PASSING.fullmatch(type(node).__name__):
        node = next((inner for inner, _ in node.next_functions if inner is not None), None)
    return node
