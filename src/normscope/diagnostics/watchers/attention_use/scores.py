"""What is known of a tensor on the way from queries and keys to scores: factors, and masks that were applied."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.tracing.function_kinds import function_name
from normscope.tracing.tracer import FunctionCall

MAX_MASK = 1 << 22


@dataclass(frozen=True)
class Scores:
    """What is known of a tensor on the way from queries to scores.

    Args:
        scale: the product of the factors so far; None if one is unknown.
        head_dim: features of a query; 0 before the product.
        mask: the masked places, as in `AttentionUse`.
    """

    scale: float | None = 1.0
    head_dim: int = 0
    mask: str = ""
    fill: float = 0.0
    masked: Tensor | None = None


def reshaped(known: Scores, given: Tensor, result: Tensor) -> Scores:
    if known.masked is None or not fits(known.masked, given):
        return replace(known, masked=None)
    return replace(known, masked=known.masked.expand(given.shape).reshape(result.shape))


def factor_of(call: FunctionCall, main: Tensor | None) -> float | Tensor | None:
    """The other side of a product: a number, or a tensor."""
    sides: list[Any] = [*call.args[:2], *call.kwargs.values()]
    if call.name == "div" and sides and not isinstance(sides[0], Tensor):
        return None
    if function_name(call.function) == "div" and getattr(call.function, "__name__", "").strip("_") in (
        "rdiv",
        "rtruediv",
    ):
        return None
    for side in sides[1:] if main is None else [x for x in sides if x is not main]:
        if isinstance(side, bool | int | float):
            return float(side)
        if isinstance(side, Tensor):
            if side.dim() == 0 and side.device.type == "cpu" and not side.requires_grad:
                return float(side)
            return side
    number = next((x for x in sides if isinstance(x, int | float)), None)
    return None if number is None else float(number)


def fits(mask: Tensor, x: Tensor) -> bool:
    try:
        return tuple(torch.broadcast_shapes(mask.shape, x.shape)) == tuple(x.shape)
    except RuntimeError:
        return False


def is_binary(mask: Tensor, scores: Tensor) -> bool:
    """Whether a tensor masks: it holds zeros and ones only, and both."""
    if mask.requires_grad or mask.numel() > MAX_MASK or mask.numel() < 4 or mask.dim() < 2 or not fits(mask, scores):
        return False
    ones = mask == 1
    return bool(((mask == 0) | ones).all()) and bool(ones.any()) and not bool(ones.all())


def with_addend(known: Scores, addend: Any) -> Scores:
    """Add a mask that has two values, the larger one for visible keys. Biases of positions have more values."""
    if (
        not isinstance(addend, Tensor)
        or addend.requires_grad
        or not 4 <= addend.numel() <= MAX_MASK
        or addend.dim() < 2
    ):
        return known
    low, high = addend.amin(), addend.amax()
    if not bool(high > low) or not bool(((addend == low) | (addend == high)).all()):
        return known
    return replace(known, mask="added", fill=float(low - high), masked=addend == low)


def filled(known: Scores, mask: Any, value: Any) -> Scores:
    number = (
        float(value) if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0) else None
    )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or number is None:
        return known
    return replace(known, mask="fill", fill=number, masked=mask if known.masked is None else known.masked | mask)
