"""Products of tensors: count their floating-point operations, and find weights that no module registers.

Weights of layers in a plain list, or created in forward, are used but not registered.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics import record
from normscope.diagnostics.collect.tensors import TensorRegistry, is_measurable
from normscope.tracing.function_kinds import ADDED_MATMULS, CONVOLUTIONS, MATMULS, RECURRENT, TRANSPOSED_CONVOLUTIONS
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_UNCOUNTED = {"tensordot", "inner", "outer", "ger", "cdist", "kron", "chain_matmul", "multi_dot", "linalg_multi_dot"}
"""Functions that multiply, but whose flops are not counted here."""
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
            is_first = bool(args) and tensor is args[0] and name not in _WEIGHT_MAY_BE_FIRST
            is_input = (is_first and not isinstance(tensor, nn.Parameter)) or known.of(tensor).consumers
            owned = itertools.chain(self._model.parameters(), self._model.buffers())
            if not is_input and not any(tensor is own for own in owned) and self._seen.get(tensor) is None:
                use = self._seen.put(tensor, (module, name, tuple(tensor.shape)))
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


def flops_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """Return the flops of one call: 0 for functions without products, None if unknown.

    >>> import torch
    >>> x, w = torch.zeros(5, 3), torch.zeros(4, 3)
    >>> flops_of("linear", (x, w), {}, x @ w.T)  # 5 x 4 outputs, each 3 multiplications and 3 additions
    120
    """
    if name in RECURRENT:
        return _recurrent(args)
    if not isinstance(result, Tensor):
        return 0
    if name == "linear":
        return 2 * result.numel() * int(_argument(args, kwargs, 1, "weight").shape[-1])
    if name in MATMULS:
        return 2 * result.numel() * int(_argument(args, kwargs, 0, "input").shape[-1])
    if name in ADDED_MATMULS:
        return 2 * result.numel() * int(_argument(args, kwargs, 1, "batch1", "mat1", "mat").shape[-1])
    if name in CONVOLUTIONS:
        weight = _argument(args, kwargs, 1, "weight")
        return 2 * result.numel() * int(weight.numel() // weight.shape[0])
    if name in TRANSPOSED_CONVOLUTIONS:
        weight = _argument(args, kwargs, 1, "weight")
        return 2 * int(_argument(args, kwargs, 0, "input").numel()) * int(weight.numel() // weight.shape[0])
    if name == "scaled_dot_product_attention":
        q, k, v = (_argument(args, kwargs, i, name) for i, name in enumerate(("query", "key", "value")))
        pairs = math.prod(q.shape[:-1]) * k.shape[-2]
        return 2 * int(pairs) * int(q.shape[-1] + v.shape[-1])
    if name == "bilinear":
        return 2 * math.prod(result.shape[:-1]) * int(_argument(args, kwargs, 2, "weight").numel())
    if name == "einsum":
        return _einsum(args)
    return None if name in _UNCOUNTED else 0


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, *names: str) -> Any:
    """Return an argument by its position, or by one of its names."""
    return args[position] if len(args) > position else next(kwargs[name] for name in names if name in kwargs)


def _recurrent(args: tuple[Any, ...]) -> int:
    """Multiply every weight matrix, of each layer and direction, by every step of every sequence."""
    steps = int(args[0].numel()) // max(1, int(args[0].shape[-1]))
    weights = next((arg for arg in args if isinstance(arg, list)), args[2:4])  # of a stack of layers, or of a cell
    return 2 * steps * sum(int(weight.numel()) for weight in weights if weight.dim() == 2)


def _einsum(args: tuple[Any, ...]) -> int | None:
    """Return twice the product of all sizes, for two operands without an ellipsis; None for others."""
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
    if len(operands) == 1:
        return 0
    if not isinstance(args[0], str) or "." in args[0] or len(operands) != 2:
        return None
    sizes: dict[str, int] = {}
    for letters, operand in zip(args[0].replace(" ", "").partition("->")[0].split(","), operands, strict=False):
        sizes.update(zip(letters, operand.shape, strict=False))
    return 2 * math.prod(sizes.values())
