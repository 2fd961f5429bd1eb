"""Weights that take part and are not the model's: those of layers in a plain list, or of layers made in forward."""

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics import record
from normscope.diagnostics.collect.flops import ADDED_MATMULS, CONVOLUTIONS, MATMULS, RECURRENT, TRANSPOSED_CONVOLUTIONS
from normscope.diagnostics.collect.tensor_registry import TensorRegistry
from normscope.diagnostics.collect.tensors import is_measurable, tensors_in

_PRODUCTS = {"linear", "bilinear", "embedding", "embedding_bag", "einsum"}
_PRODUCTS |= CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS | MATMULS | ADDED_MATMULS | RECURRENT
_EITHER = MATMULS | ADDED_MATMULS | {"einsum"}
"""Here a weight may stand first; in others that is the place of the input."""
_DEEPEST = 3
"""Recurrent layers and einsum take their weights in a list."""


class UnregisteredParameters:
    """Looks at what functions multiply by: a leaf that asks for a gradient is a weight, whoever has it.

    It is asked whose a weight is when it is used: torch.func.functional_call lends weights to a model for one call.
    What was given to a module is an input, and without gradients a hidden teacher is as it should be.

    Args:
        model: the one that should have the weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = set(map(id, model.parameters()))
        self._seen: dict[int, tuple[weakref.ref[Tensor], tuple[str, str, tuple[int, ...]]]] = {}
        self._found: dict[tuple[str, str, tuple[int, ...]], int] = {}

    def check_call(
        self, place: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], known: TensorRegistry
    ) -> None:
        if name not in _PRODUCTS or not torch.is_grad_enabled():
            return
        for tensor in tensors_in((args, tuple(kwargs.values())), _DEEPEST):
            # Nearly all are no leaves, or the model's own: that is asked first.
            if not (tensor.requires_grad and tensor.is_leaf) or id(tensor) in self._own or not is_measurable(tensor):
                continue
            is_input = tensor is args[0] and name not in _EITHER if args else False
            if (is_input and not isinstance(tensor, nn.Parameter)) or known.of(tensor).consumers or self._has(tensor):
                continue
            self._add(tensor, (place, name, tuple(tensor.shape)))

    def _has(self, tensor: Tensor) -> bool:
        return any(tensor is own for own in itertools.chain(self._model.parameters(), self._model.buffers()))

    def _add(self, tensor: Tensor, use: tuple[str, str, tuple[int, ...]]) -> None:
        before = self._seen.get(id(tensor))
        if before is None or before[0]() is not tensor:
            self._seen[id(tensor)] = (weakref.ref(tensor), use)
            self._found[use] = self._found.get(use, 0) + 1

    def take_step(self, parameters: list[Tensor]) -> None:
        """Those that an optimiser has are in good hands."""
        for parameter in parameters:
            before = self._seen.get(id(parameter))
            if before is not None and before[0]() is parameter:
                self._found[before[1]] -= 1
                del self._seen[id(parameter)]
            self._own.add(id(parameter))

    def finish(self) -> tuple[record.UnregisteredParameter, ...]:
        return tuple(record.UnregisteredParameter(*use, count) for use, count in self._found.items() if count > 0)
