"""Cross-entropies as they are computed, and whether what they were given as logits had been squashed before."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.diagnostics.collect.kinds import VIEWS
from normscope.diagnostics.collect.tensor_registry import version_of
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.ops.cross_entropy import cross_entropy

if TYPE_CHECKING:
    from normscope.diagnostics.collect.session import XraySession

PROBABILITY_FUNCTIONS = {"softmax", "log_softmax", "sigmoid"}
"""What belongs inside of a cross-entropy, and is often done before it too."""

PASS_THROUGH = VIEWS | {"__getitem__", "select", "narrow", "index_select", "masked_select"}
"""What is the same numbers, or some of them."""


class ProbabilityTracker:
    """The tensors that are the output of one of these functions: which one, and the module that called it."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def follow(self, name: str, args: tuple[Any, ...], result: Any, where: str | None) -> None:
        """Take note of what a function made, or passed on."""
        if not isinstance(result, Tensor) or not is_measurable(result):
            return
        if name in PROBABILITY_FUNCTIONS:
            self._known[result] = (name, where, version_of(result))
        elif args and isinstance(args[0], Tensor) and result is not args[0]:
            squash = self.of(args[0])
            if squash is not None:
                self._known[result] = (*squash, version_of(result))

    def of(self, tensor: Tensor) -> tuple[str, str | None] | None:
        """The function, and the module that called it (None if none did); None for a tensor that none of them made, or
        that was changed in place since."""
        known = self._known.get(tensor)
        return None if known is None or known[2] != version_of(tensor) else known[:2]

    def clear(self) -> None:
        self._known.clear()


def record_loss(
    session: "XraySession", func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    logits = args[0] if args else kwargs.get("input")
    if kwargs.get("reduction", "mean") != "mean":  # a sum cannot be held against ln V
        return
    if isinstance(logits, Tensor) and isinstance(result, Tensor) and result.numel() == 1 and logits.dim() >= 2:
        axis = -1 if func is cross_entropy else 1
        with torch._C.DisableTorchFunction():
            if is_measurable(result):
                squash = session.probabilities.of(logits) or (None, None)
                session.add_loss(float(result.detach()), int(logits.shape[axis]), *squash)
