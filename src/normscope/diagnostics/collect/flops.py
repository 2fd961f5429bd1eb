"""Multiplications and additions, from the shapes that functions are given."""

import math
from typing import Any

from torch import Tensor

MATMULS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv"}
ADDED_MATMULS = {"addmm", "baddbmm", "addmv", "addbmm"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
TRANSPOSED_CONVOLUTIONS = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
_UNCOUNTED = {"tensordot", "inner", "outer", "ger", "cdist", "kron", "chain_matmul", "multi_dot", "linalg_multi_dot"}
"""They multiply as well, but how much is not worked out here."""


def flops_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """Of one call; 0 for a function that multiplies nothing by a matrix, None for one that is not counted.

    >>> import torch
    >>> x, w = torch.zeros(5, 3), torch.zeros(4, 3)
    >>> flops_of("linear", (x, w), {}, x @ w.T)  # 5 x 4 results, 3 products and 3 sums each
    120
    """
    if name in RECURRENT:
        return _recurrent(args)
    if not isinstance(result, Tensor):
        return 0
    if name == "linear":
        return 2 * result.numel() * int(_given(args, kwargs, 1, "weight").shape[-1])
    if name in MATMULS:
        return 2 * result.numel() * int(_given(args, kwargs, 0, "input").shape[-1])
    if name in ADDED_MATMULS:
        return 2 * result.numel() * int(_given(args, kwargs, 1, "batch1", "mat1", "mat").shape[-1])
    if name in CONVOLUTIONS:
        weight = _given(args, kwargs, 1, "weight")
        return 2 * result.numel() * int(weight.numel() // weight.shape[0])
    if name in TRANSPOSED_CONVOLUTIONS:
        weight = _given(args, kwargs, 1, "weight")
        return 2 * int(_given(args, kwargs, 0, "input").numel()) * int(weight.numel() // weight.shape[0])
    if name == "scaled_dot_product_attention":
        q, k, v = (_given(args, kwargs, place, word) for place, word in enumerate(("query", "key", "value")))
        pairs = math.prod(q.shape[:-1]) * k.shape[-2]
        return 2 * int(pairs) * int(q.shape[-1] + v.shape[-1])
    if name == "bilinear":
        return 2 * math.prod(result.shape[:-1]) * int(_given(args, kwargs, 2, "weight").numel())
    if name == "einsum":
        return _einsum(args)
    return None if name in _UNCOUNTED else 0


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, *names: str) -> Any:
    """An argument by its place, or by the name that it has in this function."""
    return args[place] if len(args) > place else next(kwargs[name] for name in names if name in kwargs)


def _recurrent(args: tuple[Any, ...]) -> int:
    """Every matrix of theirs is multiplied by every step of every text: each layer's, and each direction's."""
    steps = int(args[0].numel()) // max(1, int(args[0].shape[-1]))
    weights = next((arg for arg in args if isinstance(arg, list)), args[2:4])  # all of a stack; or those of a cell
    return 2 * steps * sum(int(weight.numel()) for weight in weights if weight.dim() == 2)


def _einsum(args: tuple[Any, ...]) -> int | None:
    """Twice the product of all sizes, for two operands without an ellipsis; more are not counted."""
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
