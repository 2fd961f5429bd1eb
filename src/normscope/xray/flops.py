"""Multiplications and additions, from the shapes that functions are given."""

from typing import Any

from torch import Tensor

_MATMULS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
_TURNED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}


def flops_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Of one call; 0 for a function that multiplies nothing by a matrix.

    >>> import torch
    >>> x, w = torch.zeros(5, 3), torch.zeros(4, 3)
    >>> flops_of("linear", (x, w), {}, x @ w.T)  # 5 x 4 results, 3 products and 3 sums each
    120
    """
    if not isinstance(result, Tensor):
        return 0
    if name == "linear":
        return 2 * result.numel() * int(_given(args, kwargs, 1, "weight").shape[-1])
    if name in _MATMULS:
        return 2 * result.numel() * int(args[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        first = args[1] if len(args) > 1 else kwargs.get("batch1", kwargs.get("mat1"))
        return 0 if first is None else 2 * result.numel() * int(first.shape[-1])
    if name in _CONVOLUTIONS:
        weight = _given(args, kwargs, 1, "weight")
        return 2 * result.numel() * int(weight.numel() // weight.shape[0])
    if name in _TURNED:
        weight = _given(args, kwargs, 1, "weight")
        return 2 * int(args[0].numel()) * int(weight.numel() // weight.shape[0])
    if name == "scaled_dot_product_attention":
        q, k, v = args[:3] if len(args) >= 3 else (kwargs["query"], kwargs["key"], kwargs["value"])
        pairs = q.numel() // q.shape[-1] * k.shape[-2]
        return 2 * int(pairs) * int(q.shape[-1] + v.shape[-1])
    if name == "einsum":
        return _einsum(args)
    return 0


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs[name]


def _einsum(args: tuple[Any, ...]) -> int:
    """Twice the product of all sizes, for two operands without an ellipsis; more are not counted."""
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
    if not isinstance(args[0], str) or "." in args[0] or len(operands) != 2:
        return 0
    sizes: dict[str, int] = {}
    for letters, operand in zip(args[0].replace(" ", "").partition("->")[0].split(","), operands, strict=False):
        sizes.update(zip(letters, operand.shape, strict=False))
    total = 2
    for size in sizes.values():
        total *= size
    return total
