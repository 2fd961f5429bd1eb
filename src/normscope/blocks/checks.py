"""What blocks and models refuse before they begin: sizes, names and tensors that cannot be meant."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from normscope.blocks.norm.checks import is_whole
from normscope.blocks.norm.spec import NormSpec
from normscope.errors import ConfigError, DtypeError, ShapeError, TokenError

Choice = TypeVar("Choice")


def check_positive(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers above zero, by name."""
    for name, size in sizes.items():
        if not is_whole(size):
            raise ConfigError(f"{name}={size!r} must be a whole number above zero")


def check_above_zero(**numbers: float) -> None:
    """Refuse what is not a finite number above zero, by name."""
    for name, number in numbers.items():
        if not (_is_number(number) and 0 < number < math.inf):
            raise ConfigError(f"{name}={number!r} must be a finite number above zero")


def check_dropout(dropout: float) -> float:
    if not (_is_number(dropout) and 0 <= dropout < 1):
        raise ConfigError(f"dropout={dropout!r} must be at least 0 and below 1")
    return dropout


def check_norm(name: str, norm: NormSpec | None) -> None:
    if norm is not None and not isinstance(norm, NormSpec):
        raise ConfigError(
            f"{name}={norm!r} must be a NormSpec, or None for no norm; named_norm(...) has those with a name"
        )


def choose(kind: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """The choice of this name; an unknown one is answered with the names there are."""
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(f"there is no {kind} {name!r}; choose one of {', '.join(choices)}")
    return choices[name]


def check_tensor(x: Tensor, taker: object) -> None:
    if not isinstance(x, Tensor):
        raise DtypeError(f"{taker} takes a tensor, but got {type(x).__name__}; make one with torch.as_tensor")


def check_type_of(x: Tensor, weight: Tensor, taker: object) -> None:
    """Refuse a tensor of another float type than the weights, unless autocast is there to bring them together."""
    if x.dtype != weight.dtype and not (x.is_floating_point() and autocasts(x.device)):
        raise DtypeError(
            f"{taker} has weights of {weight.dtype}, but got a tensor of {x.dtype}; convert one of them with .to(), "
            f"or run under torch.autocast"
        )


def autocasts(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)  # torch cannot be asked about meta


def check_tokens(tokens: Tensor, taker: object, *, rank: int | None = None) -> None:
    check_tensor(tokens, taker)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"{taker} takes token ids of int64 or int32, but got {tokens.dtype}; use tokens.long()")
    if rank is not None and tokens.dim() != rank:
        raise ShapeError(f"{taker} takes token ids of shape (batch, tokens), but got shape {tuple(tokens.shape)}")


def unknown_token(tokens: Tensor, vocabulary: int, taker: object, *, ignored: int | None = None) -> TokenError:
    """The error for the first id that the vocabulary does not have."""
    outside = (tokens < 0) | (tokens >= vocabulary)
    if ignored is not None:
        outside &= tokens != ignored
    wrong = int(tokens[outside][0])
    return TokenError(f"token id {wrong} is not in the table: {taker} has the ids 0 to {vocabulary - 1}")


def check_mask(mask: Tensor | None, shape: tuple[int, int]) -> None:
    if mask is None:
        return
    check_tensor(mask, "a mask")
    if mask.dtype != torch.bool or tuple(mask.shape) != shape:
        raise ShapeError(
            f"the mask must be boolean, True where a token is real, of shape {shape}, but got {mask.dtype} of shape "
            f"{tuple(mask.shape)}"
        )


def check_images(images: Tensor, channels: int, size: int) -> None:
    check_tensor(images, "the model")
    if images.dim() != 4 or tuple(images.shape[1:]) != (channels, size, size):
        raise ShapeError(
            f"the model takes images of shape (n, {channels}, {size}, {size}), but got {tuple(images.shape)}"
        )


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
