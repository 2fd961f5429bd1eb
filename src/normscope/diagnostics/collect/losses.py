"""Record cross-entropy losses, and detect probabilities that are passed as logits."""

import math
from typing import Any

from torch import Tensor

from normscope.diagnostics.collect.tensors import is_measurable, version_of
from normscope.diagnostics.record import LossRecord
from normscope.ops.cross_entropy import cross_entropy
from normscope.tracing.function_kinds import SAME_VALUES, SELECTIONS
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_MAX_LOSSES = 1000
"""Losses that are kept. The first non-finite loss after them is kept too."""

_PROBABILITY_FUNCTIONS = {"softmax", "log_softmax", "sigmoid"}
"""Functions that cross-entropy applies itself. Applying them before is a common mistake."""

_PASS_THROUGH = SAME_VALUES | SELECTIONS | {"index_select", "masked_select"}
"""Functions that return all or some values of their input."""


class LossTracker:
    """The cross-entropies, and the outputs of softmax, log_softmax and sigmoid, which are no logits."""

    def __init__(self) -> None:
        self.losses: list[LossRecord] = []
        # The function, and the module that called it, if any. An output that was changed in place is forgotten.
        self._probabilities = TensorTable[tuple[str, str | None]](version_of)

    def follows(self, name: str) -> bool:
        """Whether a function returns probabilities, or may pass them on."""
        return name in _PROBABILITY_FUNCTIONS or (name in _PASS_THROUGH and len(self._probabilities) > 0)

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Remember the output of a function that returns probabilities, or passes them on."""
        if not is_measurable(result):
            return
        if call.name in _PROBABILITY_FUNCTIONS:
            self._probabilities.put(result, (call.name, call.frames[-1].accumulator.name if call.frames else None))
        elif call.args and isinstance(call.args[0], Tensor) and result is not call.args[0]:
            source = self._probabilities.get(call.args[0])
            if source is not None:
                self._probabilities.put(result, source)

    def add(self, call: FunctionCall, result: Any) -> None:
        """Add the loss that a call of cross_entropy returned, if it is a mean."""
        logits = call.args[0] if call.args else call.kwargs.get("input")
        if call.kwargs.get("reduction", "mean") != "mean":  # a sum cannot be compared with ln(classes)
            return
        if not isinstance(logits, Tensor) or logits.dim() < 2 or not is_measurable(result) or result.numel() != 1:
            return
        value, num_classes = float(result.detach()), int(logits.shape[-1 if call.function is cross_entropy else 1])
        is_first_non_finite = bool(self.losses) and math.isfinite(self.losses[-1].value) and not math.isfinite(value)
        if len(self.losses) < _MAX_LOSSES or is_first_non_finite:
            self.losses.append(LossRecord(value, num_classes, *self._probabilities.get(logits) or ()))

    def clear(self) -> None:
        self._probabilities.clear()
