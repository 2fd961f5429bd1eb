"""Argument checks of blocks and models."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from normscope.checks import is_number
from normscope.errors import ArgumentTypeError, ConfigError, DeviceError, DtypeError, ShapeError, TokenError
from normscope.ops.norm.reference import check_dense
from normscope.runtime.devices import check_device

Choice = TypeVar("Choice")


def check_dropout(dropout: float) -> float:
    if not (is_number(dropout) and 0 <= dropout < 1):
        raise ConfigError(f"dropout={dropout!r} must be at least 0 and below 1")
    return dropout


def check_placement(device: torch.device | str | None, dtype: torch.dtype | None) -> None:
    """Check the device and dtype of a layer's parameters."""
    check_device(device)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DtypeError(f"dtype={dtype!r} must be a torch float type, for instance torch.float32")


def lookup(kind: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """Look up a choice by name; the error for an unknown name lists the choices."""
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(f"unknown {kind} {name!r}; choose one of {', '.join(choices)}")
    return choices[name]


def check_tensor(x: object, taker: object) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"{taker} takes a tensor, but got {type(x).__name__}; make one with torch.as_tensor")


def check_stream(x: Tensor, taker: str) -> None:
    """Check that x has shape (batch, tokens, width)."""
    check_tensor(x, taker)
    check_dense(x, taker)
    if x.dim() != 3:
        raise ShapeError(f"{taker} takes (batch, tokens, width), but got shape {tuple(x.shape)}")


def check_type_of(x: Tensor, weight: Tensor, taker: object) -> None:
    """Check that x has the dtype of the weights, or that autocast converts it."""
    if x.dtype == weight.dtype or (x.is_floating_point() and autocasts(x.device)):
        return
    fix = f"convert it with .to({weight.dtype})"  # autocast converts floating-point tensors only
    if x.is_floating_point():
        fix = "convert one of them with .to(), or run under torch.autocast"
    raise DtypeError(f"{taker} has weights of {weight.dtype}, but got a tensor of {x.dtype}; {fix}")


def autocasts(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)  # torch raises for the meta device


def check_tokens(tokens: Tensor, taker: object, *, rank: int | None = None) -> None:
    check_tensor(tokens, taker)
    check_dense(tokens, taker)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"{taker} takes token ids of int64 or int32, but got {tokens.dtype}; use tokens.long()")
    if rank is not None and tokens.dim() != rank:
        raise ShapeError(f"{taker} takes token ids of shape (batch, tokens), but got shape {tuple(tokens.shape)}")


def unknown_token(tokens: Tensor, vocabulary: int, taker: object, *, ignored: int | None = None) -> TokenError:
    """Return the error for the first id outside the vocabulary."""
    outside = (tokens < 0) | (tokens >= vocabulary)
    also = ""
    if ignored is not None:
        outside &= tokens != ignored
        also = f", or {ignored} for ignored targets"
    wrong = int(tokens[outside][0])
    return TokenError(f"token id {wrong} is out of range for {taker}: expected 0 to {vocabulary - 1}{also}")


def check_same_device(what: str, device: torch.device, wanted: torch.device) -> None:
    if device != wanted:
        raise DeviceError(f"expected {what} on {wanted}, but it is on {device}\nfix: move it with .to({str(wanted)!r})")


def check_mask_tensor(mask: Tensor, x: Tensor) -> None:
    """Check that a mask is dense and on the device of x."""
    check_dense(mask, "the mask")
    check_same_device("the mask", mask.device, x.device)


def check_mask(mask: Tensor | None, x: Tensor, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    check_tensor(mask, "a mask")
    check_mask_tensor(mask, x)
    wanted = f"the mask must be a bool tensor of shape {tuple(shape)}, True at real tokens"
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"{wanted}, but got {mask.dtype} of shape {tuple(mask.shape)}")
    if mask.dtype != torch.bool:
        raise DtypeError(f"{wanted}, but got {mask.dtype}; use mask.bool()")


def check_images(images: Tensor, channels: int, size: int) -> None:
    check_tensor(images, "the model")
    check_dense(images, "the model")
    if images.dim() != 4 or tuple(images.shape[1:]) != (channels, size, size):
        raise ShapeError(
            f"the model takes images of shape (n, {channels}, {size}, {size}), but got {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise DtypeError(f"expected floating-point images, but got {images.dtype}; for uint8 use images.float() / 255")
