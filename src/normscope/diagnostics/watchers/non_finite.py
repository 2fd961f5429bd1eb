"""Find the function that made the first NaN or Inf, forward or backward, inside the model or outside of it."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_only_masked
from normscope.diagnostics.stats.non_finite import NonFiniteOrigin, NonFiniteStats
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.function_kinds import COPIES, SAME_VALUES, SELECTIONS
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall, Hook, HookHandles

_NO_ARITHMETIC = SAME_VALUES | SELECTIONS | COPIES | {"grad", "empty", "empty_like", "new_empty", "backward"}

_MASKS = frozenset(
    [
        *("masked_fill", "where", "full", "full_like", "new_full", "triu", "tril", "fill", "tensor", "setitem"),
        *("as_tensor", "new_tensor", "masked_scatter", "index_fill", "cat", "stack", "float", "to"),
    ]
)
"""Functions that write -inf on purpose."""

_STEEP = frozenset(
    [
        *("sqrt", "rsqrt", "pow", "rpow", "div", "rdiv", "reciprocal", "log", "log2", "log10", "log1p", "atan2"),
        *("acos", "asin", "arccos", "arcsin", "acosh", "atanh", "arctanh", "tan", "norm", "vector_norm", "std", "var"),
        *("cdist", "prod", "cumprod", "normalize", "cosine_similarity", "pairwise_distance", "hypot", "logit", "svd"),
        *("eigh", "inv", "inverse", "det", "logdet", "slogdet", "cholesky", "solve", "xlogy", "kl_div", "logaddexp"),
        *("logsumexp", "binary_cross_entropy", "erfinv", "lgamma", "digamma", "qr", "matrix_exp", "acosh", "arccosh"),
    ]
)
"""Functions whose slope may be infinite where their value is finite."""

_MAX_NODES = 12
"""Nodes of one function in the graph: normalize() has four."""


class NonFiniteWatcher(Watcher):
    """Follow NaN and Inf from the function that made them to the loss, and gradients of functions with steep slopes."""

    functions = None

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._origins = TensorTable[NonFiniteOrigin]()
        self._handles = HookHandles()
        self._loss: NonFiniteOrigin | None = None
        self._gradient: NonFiniteOrigin | None = None
        self._is_over = False
        self._steps = self._steps_before = 0
        self._first_loss: float | None = None
        self._last_loss: float | None = None
        self._sums: dict[int, float] = {}
        self._largest_update: float | None = None

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if self._is_over:
            return
        is_passed_on = call.name in _NO_ARITHMETIC
        if is_passed_on and not len(self._origins):
            return
        outputs = [result] if isinstance(result, Tensor) else tensors_in(result, 2)
        if call.name == "setitem":
            outputs = tensors_in(call.args[0])
        for output in outputs:
            if not is_measurable(output) or (is_passed_on and not self._inherited(call)):
                continue
            if not _is_finite(output):
                self._origins.put(output, self._origin_of(call, output))
            elif call.name in _STEEP and output.grad_fn is not None:
                self._watch_slope(call, output)

    def _inherited(self, call: FunctionCall) -> list[NonFiniteOrigin]:
        inputs = (self._origins.get(tensor) for tensor in tensors_in(call.args, 2))
        return [origin for origin in inputs if origin is not None]

    def _origin_of(self, call: FunctionCall, output: Tensor) -> NonFiniteOrigin:
        """That of a non-finite input; the function itself if its inputs are finite, or only masked with -inf."""
        before = self._origins.get(output)
        if before is not None and before.kind != "mask":  # changed in place, or returned as it was
            return before
        inputs = [t for t in tensors_in((call.args, call.kwargs), 3) if is_measurable(t) and t is not output]
        known = []
        for tensor in inputs:
            origin = self._origins.get(tensor)
            if origin is None and not _is_finite(tensor):
                is_weight = id(tensor) in self.watched.parameters.tracked
                kind = "weight" if is_weight else "mask" if is_only_masked(tensor) else "tensor"
                origin = self._make(call, output, inputs, kind, "")
                self._origins.put(tensor, origin)
            known += [] if origin is None or _is_finite(tensor) else [origin]
        real = [origin for origin in known if origin.kind != "mask"]
        if real:
            return real[0]
        if is_only_masked(output) and (known or call.name in _MASKS):
            return known[0] if known else self._make(call, output, inputs, "mask")
        is_empty = bool(inputs) and not any(tensor.numel() for tensor in inputs)
        return self._make(call, output, inputs, "masked" if known else "empty" if is_empty else "function")

    def _make(
        self, call: FunctionCall, output: Tensor, inputs: list[Tensor], kind: str, name: str | None = None
    ) -> NonFiniteOrigin:
        finite = [t.detach()[torch.isfinite(t.detach())] for t in inputs if t.numel()]
        finite = [t.float() for t in finite if t.numel()]
        module = call.frames[-1].accumulator.name if call.frames else ""
        return NonFiniteOrigin(
            call.name if name is None else name,
            module,
            source_line(),
            kind,
            str(output.dtype).removeprefix("torch."),
            not bool(torch.isnan(output.detach()).any()),
            min((float(t.min()) for t in finite), default=None),
            max((float(t.max()) for t in finite), default=None),
            float(finite[-1].abs().min()) if finite else None,
            bool(call.frames),
        )

    def _watch_slope(self, call: FunctionCall, output: Tensor) -> None:
        """Look at the gradients that go into and come out of the nodes of a function."""
        if self._gradient is not None or not _may_be_steep(call):
            return
        inputs = [t for t in tensors_in((call.args, call.kwargs), 2) if is_measurable(t)]
        ends, waiting = {t.grad_fn for t in inputs}, [output.grad_fn]
        module, line = call.frames[-1].accumulator.name if call.frames else "", source_line()
        for _ in range(_MAX_NODES):
            if not waiting:
                break
            node = waiting.pop(0)
            if node is None or node in ends or hasattr(node, "variable"):
                continue
            hook = self._slope_hook(call.name, module, line, bool(call.frames))
            self._handles.add(node.register_hook(Hook(hook)))
            waiting += [following for following, _ in node.next_functions]

    def _slope_hook(self, name: str, module: str, line: str | None, in_model: bool) -> Callable[[Any, Any], None]:
        def look(of_inputs: Any, of_outputs: Any) -> None:
            if self._gradient is None and not self._is_over and self.session.is_active:
                made = [g for g in of_inputs if isinstance(g, Tensor) and not _is_finite(g)]
                if made and all(_is_finite(g) for g in of_outputs if isinstance(g, Tensor)):
                    dtype = str(made[0].dtype).removeprefix("torch.")
                    self._gradient = NonFiniteOrigin(name, module, line, dtype=dtype, in_model=in_model)
                    self._begin(self._steps)

        return lambda of_inputs, of_outputs: self.session.guarded("a gradient", look, of_inputs, of_outputs)

    def _begin(self, steps: int) -> None:
        if self._loss is None:
            self._steps_before = steps

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        for root in roots:
            if not is_measurable(root) or root.numel() != 1 or self._is_over:
                continue
            value = float(root.detach())
            if math.isfinite(value):
                self._first_loss = value if self._first_loss is None else self._first_loss
                self._last_loss = value
                continue
            self._loss = self._origins.get(root)
            if self._gradient is None:
                self._steps_before = self._steps
            self._is_over = True  # from here on everything is non-finite

    def after_step(self, optimizer: Optimizer) -> None:
        if self._is_over or self._gradient is not None:
            return
        self._steps += 1
        found = []
        for key, tracked in self.watched.parameters.tracked.items():
            change = tracked.update_ratios - self._sums.get(key, 0.0)
            self._sums[key] = tracked.update_ratios
            if tracked.parameter.dim() >= 2 and math.isfinite(change) and change > 0:
                found.append(change)
        if found:
            self._largest_update = max(self._largest_update or 0.0, median(found))

    def stop(self) -> None:
        self._handles.remove()
        self._origins.clear()

    def finish(self) -> dict[str, Any]:
        if not self._is_over and self._gradient is None:
            return {}
        losses = self._first_loss, self._last_loss
        return {
            "non_finite": NonFiniteStats(self._loss, self._gradient, self._steps_before, *losses, self._largest_update)
        }


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite. The sum is fast, but it may overflow."""
    tensor = tensor.detach()
    return not tensor.numel() or math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def _may_be_steep(call: FunctionCall) -> bool:
    """Division by a number, and powers of at least one, have finite slopes."""
    other = call.args[1] if len(call.args) > 1 else None
    if call.name == "div":
        return isinstance(other, Tensor)
    if call.name == "pow":
        return isinstance(other, Tensor) or not isinstance(other, int | float) or other < 1
    return True
