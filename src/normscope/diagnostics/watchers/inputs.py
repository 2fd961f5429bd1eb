"""Watch the batches: their scale, repeats, changes in place, padding, and rows or columns without information."""

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_readable
from normscope.diagnostics.stats.inputs import InputsRecord, InputUse
from normscope.diagnostics.watchers.attention_use.masks import padding_of
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.module_kinds import is_linear
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import tensor_version
from normscope.tracing.tracer import FunctionCall

_MAX_CALLS = 50
"""Calls that are looked at in detail."""

_MAX_ELEMENTS = 1 << 18
_MAX_COLUMNS = 512
_MIN_ROWS = 4
_MAX_KNOWN = 64
_MIN_CHANGES = 2
_CLASS_LOSSES = ("cross_entropy", "nll_loss")
_LOSSES = (*_CLASS_LOSSES, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
_ARITHMETIC = ("add", "sub", "mul", "div")
_MIN_SPREAD = 1e-5
"""Spread of predictions over samples, relative to their size; below is rounding."""


@dataclass
class _Known:
    """A tensor that was an input: weakly, its version and the sum of its values when it was."""

    owner: weakref.ref[Tensor]
    version: int
    total: float
    changes: int = 0
    line: str = ""


class InputsWatcher(Watcher):
    """Looks at inputs of the outermost calls with gradients, and at the targets of losses."""

    functions = (*_LOSSES, *_ARITHMETIC)

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._record: dict[str, Any] = {"batches": 0, "alike_rows": 0, "repeated": 0, "loaders_restarted": 0}
        self._known: dict[tuple[int, int, tuple[int, ...]], _Known] = {}
        self._uses: dict[str, InputUse] = {}
        self._inputs: list[Tensor] = []
        self._outermost: CallFrame | None = None
        self._version: int | None = None
        self._content: tuple[Any, ...] | None = None
        self._owner: weakref.ref[Tensor] | None = None
        self._stepped = True
        self._alike = self._is_counted = False
        self._lows: Tensor | None = None
        self._highs: Tensor | None = None
        self._rows = 0
        self._minimum = float("inf")
        self._padding: Tensor | None = None
        self._labels: list[int | None] = []
        self._order: list[int] = []
        """The labels where they change, while each is at least the one before; then nothing more."""
        self._is_ordered = True
        self._spreads: list[bool] = []
        self._changed = self._losses = 0

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if not torch.is_grad_enabled():
            return
        if outer:
            if len(outer) < 6 and _is_first_layer(frame.module) and frame.accumulator.name not in self._uses:
                self._see_first_layer(frame, args)
            return
        self._outermost = frame
        self._inputs = [x for x in tensors_in((args, kwargs)) if is_readable(x)]
        if self._inputs and self._record["batches"] < _MAX_CALLS:
            self._record["batches"] += 1
            self._see_inputs(self._inputs)
            if _is_first_layer(frame.module):
                self._see_first_layer(frame, args)

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        if frame is not self._outermost or not self._inputs:
            return
        first, version = self._inputs[0], self._version
        self._inputs, self._outermost = [], None
        if version is None or tensor_version(first) == version or first.requires_grad:
            return
        known = self._known.get(_place(first))
        if known is not None and known.total != _total(first):
            self._record["changed_by"] = frame.accumulator.name
            base = first._base
            self._record["changed_data"] = self._record.get("changed_data", False) or known.changes > 0
            if base is not None and len(base) > len(first) > 0 and base.dim() == first.dim():
                self._record["changed_data"] = True
            known.total = _total(first)

    def after_step(self, optimizer: Optimizer) -> None:
        self._stepped = True

    def iterate_loader(self, loader: Any) -> None:
        with contextlib.suppress(TypeError):  # an iterable data set has no length
            self._record["loaders_restarted"] += len(loader) > 1

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if call.name in _ARITHMETIC:
            self._see_arithmetic(call)
            return
        prediction, target = (
            ((*call.args, None, None)[:2])
            if len(call.args) > 1
            else (
                call.args[0] if call.args else call.kwargs.get("input"),
                call.kwargs.get("target"),
            )
        )
        if not is_measurable(prediction) or not isinstance(target, Tensor) or not is_readable(target):
            return
        if target.numel() > _MAX_ELEMENTS:
            return
        if self._losses < 10 * _MAX_CALLS and torch.is_grad_enabled():
            self._losses += 1
            self._see_loss(call, prediction.detach(), target.detach())

    def stop(self) -> None:
        self._inputs, self._outermost, self._padding = [], None, None
        self._known.clear()

    def finish(self) -> dict[str, Any]:
        record = dict(self._record)
        if self._lows is not None and self._highs is not None:
            constant = (self._lows == self._highs) & (self._lows != 0) & (self._lows > self._minimum)
            record |= {"columns": len(self._lows), "constant_columns": int(constant.sum()), "rows": self._rows}
        labels = set(self._labels)
        if None not in labels:
            record |= {"single_class_batches": len(self._labels), "classes": len(labels)}
        elif self._is_ordered:
            record |= {"ordered_batches": len(self._labels), "classes": len(self._order)}
        if self._spreads and all(self._spreads):
            record["same_outputs"] = len(self._spreads)
        self._lows = self._highs = None
        return {"inputs": InputsRecord(uses=tuple(self._uses.values()), **record)}

    def _see_inputs(self, inputs: list[Tensor]) -> None:
        first = inputs[0].detach()
        self._version = tensor_version(first)
        if first.numel() > _MAX_ELEMENTS or not first.numel() or first.dim() == 0:
            self._padding = None
            return
        self._see_repeats(inputs)
        self._see_changes(inputs[0])
        self._padding = padding_of(first)
        rows = [x for x in inputs if x.dim() and len(x) == len(first)]
        is_one_token = not first.is_floating_point() and first.numel() == len(first)
        is_small = all(x.numel() <= _MAX_ELEMENTS for x in rows)
        self._alike = len(first) >= _MIN_ROWS and not is_one_token and is_small
        self._alike = self._alike and all(bool((x[1:] == x[:1]).all()) for x in rows)
        self._is_counted = False
        if first.is_floating_point() and first.dim() == 2 and first.shape[1] <= _MAX_COLUMNS:
            low, high = first.amin(0), first.amax(0)
            if self._lows is not None and self._highs is not None and self._lows.shape == low.shape:
                low, high = torch.minimum(self._lows, low), torch.maximum(self._highs, high)
            self._lows, self._highs, self._minimum = low, high, min(self._minimum, float(low.amin()))
            self._rows += len(first)

    def _see_repeats(self, inputs: list[Tensor]) -> None:
        """Compare the first batch after each step with that of the step before."""
        if not self._stepped:
            return
        self._stepped = False
        content = tuple((tuple(x.shape), _total(x)) for x in inputs if x.numel() <= _MAX_ELEMENTS)
        owner = inputs[0]._base if inputs[0]._base is not None else inputs[0]
        is_same_tensor = self._owner is not None and self._owner() is owner
        self._record["repeated"] += content == self._content and not is_same_tensor and inputs[0].is_leaf
        self._content, self._owner = content, weakref.ref(owner)

    def _see_changes(self, x: Tensor) -> None:
        place, total = _place(x), _total(x)
        known = self._known.get(place)
        if known is None or known.owner() is not (x._base if x._base is not None else x):
            if len(self._known) < _MAX_KNOWN:
                self._known[place] = _Known(
                    weakref.ref(x._base if x._base is not None else x), tensor_version(x), total
                )
            return
        if known.total != total and known.version != tensor_version(x):
            known.changes += 1
            self._changed += bool(known.line)
            if self._changed >= _MIN_CHANGES:
                self._record["changed_line"] = known.line
        if self._record.get("changed_by") is not None:
            self._record["changed_data"] = True
        known.total, known.version, known.line = total, tensor_version(x), ""

    def _see_arithmetic(self, call: FunctionCall) -> None:
        """Changes in place by the training loop, of a tensor that was an input."""
        if call.frames or not call.args or not self._known or not isinstance(call.args[0], Tensor):
            return
        own = getattr(call.function, "__name__", "")
        x = call.args[0]
        if (own.endswith("_") and not own.endswith("__")) or own.startswith("__i"):
            known = self._known.get(_place(x))
            if known is not None and not x.requires_grad:
                known.line = source_line() or ""

    def _see_first_layer(self, frame: CallFrame, args: Any) -> None:
        given = args[0] if args else None
        if not is_measurable(given) or not 0 < given.numel() <= _MAX_ELEMENTS:
            return
        if not any(x.data_ptr() == given.data_ptr() and x.numel() == given.numel() for x in self._inputs):
            return
        x = given.detach().float()
        column, own, others = None, 0.0, 0.0
        if isinstance(frame.module, nn.Linear) and x.dim() == 2 and x.shape[1] <= _MAX_COLUMNS:
            sizes = x.square().mean(0).sqrt()
            column, own = int(sizes.argmax()), float(sizes.amax())
            others = float(sizes.median())
        name = frame.accumulator.name
        self._uses[name] = InputUse(name, float(x.square().mean().sqrt()), column, own, others)

    def _see_loss(self, call: FunctionCall, prediction: Tensor, target: Tensor) -> None:
        count = len(prediction) if prediction.dim() else 0
        varies = target.dim() > 0 and len(target) == count >= _MIN_ROWS and bool((target[1:] != target[:1]).any())
        if self._alike and varies and not self._is_counted:
            self._record["alike_rows"] += 1
            self._is_counted = True
        if varies and prediction.is_floating_point() and prediction.numel() <= _MAX_ELEMENTS:
            size = float(prediction.abs().amax())
            spread = float((prediction[1:] - prediction[:1]).abs().amax())
            self._spreads.append(not self._alike and spread <= _MIN_SPREAD * size)
        if call.name in _CLASS_LOSSES and not target.is_floating_point():
            if target.dim() == 1 and prediction.dim() == 2 and len(target) >= 2 * _MIN_ROWS:
                is_single = bool((target == target[0]).all())
                self._labels.append(int(target[0]) if is_single else None)
                self._see_order(target)
            self._see_padding(call, target)

    def _see_order(self, target: Tensor) -> None:
        classes = target.unique_consecutive().tolist() if self._is_ordered else []
        for label in classes:
            if not self._order or label > self._order[-1]:
                self._order.append(label)
            elif label < self._order[-1]:
                self._is_ordered = False

    def _see_padding(self, call: FunctionCall, target: Tensor) -> None:
        padding = self._padding
        weight = call.kwargs.get("weight", call.args[2] if len(call.args) > 2 else None)
        if padding is None or weight is not None or call.kwargs.get("reduction", "mean") == "none":
            return
        if target.numel() != padding.numel():
            return
        y = target.reshape(padding.shape)
        values = y[padding]
        token = values.mode().values
        counted = y != call.kwargs.get("ignore_index", -100)
        is_padding = padding & (y == token) & counted
        if float((values == token).float().mean()) > 0.9 and not bool(((y == token) & ~padding)[:, :-1][:, :1].any()):
            fraction = float(is_padding.sum() / counted.sum().clamp_min(1))
            if fraction > self._record.get("padded_targets", 0.0):
                self._record |= {"padded_targets": fraction, "padding": int(token)}


def _is_first_layer(module: nn.Module) -> bool:
    return is_linear(module) or isinstance(module, nn.RNNBase)


def _place(x: Tensor) -> tuple[int, int, tuple[int, ...]]:
    base = x._base if x._base is not None else x
    return id(base), int(x.storage_offset()), tuple(x.shape)


def _total(x: Tensor) -> float:
    """A number that tells most contents apart: a weighted sum of values."""
    flat = x.detach().reshape(-1).double()
    return float((flat * torch.linspace(1, 2, len(flat), dtype=torch.float64, device=flat.device)).sum())
