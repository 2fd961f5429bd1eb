"""Count floating-point operations from the shapes of a function's arguments."""

import math
from typing import Any

from torch import Tensor

from normscope.tracing.function_kinds import (
    ADDED_MATMULS,
    CONVOLUTIONS,
    MATMULS,
    RECURRENT,
    TRANSPOSED_CONVOLUTIONS,
)

_UNCOUNTED = {"tensordot", "inner", "outer", "ger", "cdist", "kron", "chain_matmul", "multi_dot", "linalg_multi_dot"}
"""Functions that multiply, but whose flops are not counted here."""


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
    total = 2
    for size in sizes.values():
        total *= size
    return total
