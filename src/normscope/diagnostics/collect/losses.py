"""Record cross-entropy losses, and detect probabilities that are passed as logits."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.diagnostics.collect.tensor_registry import version_of
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.ops.cross_entropy import cross_entropy
from normscope.tracing.function_kinds import SAME_VALUES, SELECTIONS
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

if TYPE_CHECKING:
    from normscope.diagnostics.collect.session import XraySession

PROBABILITY_FUNCTIONS = {"softmax", "log_softmax", "sigmoid"}
"""Functions that cross-entropy applies itself. Applying them before is a common mistake."""

PASS_THROUGH = SAME_VALUES | SELECTIONS | {"index_select", "masked_select"}
"""Functions that return all or some values of their input."""


class ProbabilityTable(TensorTable[tuple[str, str | None]]):
    """The outputs of softmax, log_softmax and sigmoid: the function, and the module that called it, if any.

    An output that was changed in place holds no probabilities.
    """

    def __init__(self) -> None:
        super().__init__(version_of)

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Remember the output of a function that returns probabilities, or passes them on."""
        if not is_measurable(result):
            return
        if call.name in PROBABILITY_FUNCTIONS:
            self.put(result, (call.name, call.frames[-1].accumulator.name if call.frames else None))
        elif call.args and isinstance(call.args[0], Tensor) and result is not call.args[0]:
            source = self.get(call.args[0])
            if source is not None:
                self.put(result, source)


def record_loss(session: "XraySession", call: FunctionCall, result: Any) -> None:
    """Add the loss that a call of cross_entropy returned, if it is a mean."""
    logits = call.args[0] if call.args else call.kwargs.get("input")
    if call.kwargs.get("reduction", "mean") != "mean":  # a sum cannot be compared with ln(classes)
        return
    with torch._C.DisableTorchFunction():
        if isinstance(logits, Tensor) and logits.dim() >= 2 and is_measurable(result) and result.numel() == 1:
            axis = -1 if call.function is cross_entropy else 1
            source = session.probabilities.get(logits) or (None, None)
            session.add_loss(float(result.detach()), int(logits.shape[axis]), *source)
