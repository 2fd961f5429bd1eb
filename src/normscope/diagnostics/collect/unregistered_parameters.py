"""Find parameters that are used but not registered: of layers in a plain list, or created in forward."""

import itertools

import torch
from torch import Tensor, nn

from normscope.diagnostics import record
from normscope.diagnostics.collect.tensor_registry import TensorRegistry
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.tracing.function_kinds import (
    ADDED_MATMULS,
    CONVOLUTIONS,
    MATMULS,
    RECURRENT,
    TRANSPOSED_CONVOLUTIONS,
)
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_PRODUCTS = {"linear", "bilinear", "embedding", "embedding_bag", "einsum"}
_PRODUCTS |= CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS | MATMULS | ADDED_MATMULS | RECURRENT
_WEIGHT_MAY_BE_FIRST = MATMULS | ADDED_MATMULS | {"einsum"}
"""Functions whose first argument may be a weight. For all others it is the input."""
_MAX_DEPTH = 3
"""Recurrent layers and einsum take their weights in a list."""

_Use = tuple[str, str, tuple[int, ...]]
"""The module, the function, and the shape of the parameter."""


class UnregisteredParameters:
    """Check the operands of products: a leaf tensor that requires a gradient is a parameter.

    Ownership is checked at the time of use: torch.func.functional_call swaps parameters for one call. A tensor that was
    given to a module is an input. Without gradients there is nothing to report: a hidden teacher is fine.

    Args:
        model: the model that should own the parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = set(map(id, model.parameters()))
        self._seen = TensorTable[_Use]()
        self._found: dict[_Use, int] = {}

    def check_call(self, module: str, call: FunctionCall, known: TensorRegistry) -> None:
        name, args = call.name, call.args
        if name not in _PRODUCTS or not torch.is_grad_enabled():
            return
        for tensor in tensors_in((args, tuple(call.kwargs.values())), _MAX_DEPTH):
            # Most tensors are no leaves, or belong to the model: check that first.
            if not (tensor.requires_grad and tensor.is_leaf) or id(tensor) in self._own or not is_measurable(tensor):
                continue
            is_input = tensor is args[0] and name not in _WEIGHT_MAY_BE_FIRST if args else False
            if (
                (is_input and not isinstance(tensor, nn.Parameter))
                or known.of(tensor).consumers
                or self._is_owned(tensor)
            ):
                continue
            self._add(tensor, (module, name, tuple(tensor.shape)))

    def _is_owned(self, tensor: Tensor) -> bool:
        return any(tensor is own for own in itertools.chain(self._model.parameters(), self._model.buffers()))

    def _add(self, tensor: Tensor, use: _Use) -> None:
        if self._seen.get(tensor) is None:
            self._seen.put(tensor, use)
            self._found[use] = self._found.get(use, 0) + 1

    def take_step(self, parameters: list[Tensor]) -> None:
        """Forget parameters that an optimizer steps."""
        for parameter in parameters:
            use = self._seen.get(parameter)
            if use is not None and id(parameter) not in self._own:
                self._found[use] -= 1
            self._own.add(id(parameter))

    def finish(self) -> tuple[record.UnregisteredParameter, ...]:
        return tuple(record.UnregisteredParameter(*use, count) for use, count in self._found.items() if count > 0)
