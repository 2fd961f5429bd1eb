"""Record cross-entropy losses, and detect probabilities that are passed as logits."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.diagnostics.collect.tensor_registry import version_of
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.ops.cross_entropy import cross_entropy
from normscope.tracing.function_kinds import SAME_VALUES, SELECTIONS

if TYPE_CHECKING:
    from normscope.diagnostics.collect.session import XraySession

PROBABILITY_FUNCTIONS = {"softmax", "log_softmax", "sigmoid"}
"""Functions that cross-entropy applies itself. Applying them before is a common mistake."""

PASS_THROUGH = SAME_VALUES | SELECTIONS | {"index_select", "masked_select"}
"""Functions that return all or some values of their input."""


class ProbabilityTracker:
    """Remember the outputs of softmax, log_softmax and sigmoid, and the module that called the function."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def follow(self, name: str, args: tuple[Any, ...], result: Any, where: str | None) -> None:
        """Remember the output of a function that returns probabilities, or passes them on."""
        if not isinstance(result, Tensor) or not is_measurable(result):
            return
        if name in PROBABILITY_FUNCTIONS:
            self._known[result] = (name, where, version_of(result))
        elif args and isinstance(args[0], Tensor) and result is not args[0]:
            source = self.of(args[0])
            if source is not None:
                self._known[result] = (*source, version_of(result))

    def of(self, tensor: Tensor) -> tuple[str, str | None] | None:
        """Return the function that made a tensor, and the module that called it, if any.

        Returns None if the tensor holds no probabilities, or was changed in place.
        """
        known = self._known.get(tensor)
        return None if known is None or known[2] != version_of(tensor) else known[:2]

    def clear(self) -> None:
        self._known.clear()


def record_loss(
    session: "XraySession", func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Add the loss that a call of cross_entropy returned, if it is a mean."""
    logits = args[0] if args else kwargs.get("input")
    if kwargs.get("reduction", "mean") != "mean":  # a sum cannot be compared with ln(classes)
        return
    if isinstance(logits, Tensor) and isinstance(result, Tensor) and result.numel() == 1 and logits.dim() >= 2:
        axis = -1 if func is cross_entropy else 1
        with torch._C.DisableTorchFunction():
            if is_measurable(result):
                source = session.probabilities.of(logits) or (None, None)
                session.add_loss(float(result.detach()), int(logits.shape[axis]), *source)
