"""Rotary position embedding (RoPE)."""

import copy
from collections.abc import Callable
from numbers import Integral
from typing import Self

import torch
from torch import Tensor

from normscope.blocks.cache import StartPosition, max_start, position_ids
from normscope.blocks.checks import check_tensor
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_positive_int, check_positive_number
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, ShapeError
from normscope.ops.norm.reference import check_dense
from normscope.ops.rotary import apply_rotary


class Rotary(BaseModule):
    r"""Rotary position embedding: rotates pairs of features by position * base^(-i/half).

    The dot product of a rotated query and key depends on their distance only.

    Formula:
        (a, b) -> (a cos t - b sin t, a sin t + b cos t)      a: first half of the head, b: second half

    Scope:
        None: each position separately. Norms of the vectors are preserved.

    Shapes:
        x: (b, s, heads, head_dim). y: same as x. cos, sin: (context, 1, head_dim / 2).

    The cos and sin tables are float32, or float64 in a float64 model. Converting the model to a lower precision does
    not round them.

    Args:
        head_dim: size of a head; must be even.
        context: number of positions.
        base: base of the frequencies; larger values give slower rotations.

    Example:
        >>> import torch
        >>> rotary = Rotary(head_dim=8, context=16)
        >>> x = torch.randn(1, 4, 2, 8)
        >>> y = rotary(x, start=0)
        >>> torch.allclose(y.norm(dim=-1), x.norm(dim=-1)), torch.equal(y[:, 0], x[:, 0])  # position 0 is not rotated
        (True, True)

    Paper:
        Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, context: int, base: float = 10000.0) -> None:
        super().__init__()
        check_rotary(head_dim, context, base)
        self.head_dim, self.context, self.base = head_dim, context, base
        # Not saved with the weights: they are computed from the arguments.
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.register_buffer("cos", torch.empty(context, 1, head_dim // 2, dtype=dtype), persistent=False)
        self.register_buffer("sin", torch.empty(context, 1, head_dim // 2, dtype=dtype), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Compute the cos and sin tables."""
        if self.cos.is_meta:
            return
        half = self.head_dim // 2
        # In float64 on the CPU, whatever the device: at position 100,000 float32 loses two digits of the angle.
        speed = self.base ** (-torch.arange(half, dtype=torch.float64, device="cpu") / half)
        place = torch.arange(self.context, dtype=torch.float64, device="cpu")
        angle = place[:, None, None] * speed  # position, 1 (heads), half
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow `Module.to(...)`, but recompute the tables rather than rounding them to a lower precision."""
        wanted = fn(self.cos.new_empty(0))
        dtype = torch.promote_types(wanted.dtype, torch.float32)
        if dtype == self.cos.dtype and not self.cos.is_meta:
            self.cos, self.sin = self.cos.to(wanted.device), self.sin.to(wanted.device)
        else:
            shape = self.cos.shape
            self.cos = torch.empty(shape, dtype=dtype, device=wanted.device)
            self.sin = torch.empty(shape, dtype=dtype, device=wanted.device)
            self.reset_parameters()
        return self

    def forward(self, x: Tensor, start: StartPosition) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, start)
        return apply_rotary(x, *self.tables(x, start))

    def tables(self, x: Tensor, start: StartPosition) -> tuple[Tensor, Tensor]:
        """Return cos and sin for the positions of x, after checking x.

        Their shape is (tokens, 1, head_dim / 2), or (batch, tokens, 1, head_dim / 2) if rows start at different
        positions.
        """
        check_tensor(x, self)
        check_dense(x, self)
        if not x.is_floating_point():
            raise DtypeError(f"{self} takes a tensor of floats, but got {x.dtype}")
        starts = start if isinstance(start, tuple) else (start,)
        for first in starts:
            if isinstance(first, bool) or not isinstance(first, int | Integral):
                raise ArgumentTypeError(f"start={first!r} must be an integer, the position of the first token")
        if x.dim() != 4 or x.shape[-1] != self.head_dim:
            raise ShapeError(f"{self} takes (batch, tokens, heads, {self.head_dim}), but got shape {tuple(x.shape)}")
        if self.cos.is_meta and not x.is_meta:  # load_state_dict(assign=True) gives weights to a model, but no tables
            self.to_empty(device=x.device)
        stop = max_start(starts) + x.shape[1]
        if min(starts) < 0 or stop > self.context:
            wrong = min(starts) if min(starts) < 0 else stop - 1
            raise ShapeError(f"position {wrong} is out of range: expected 0 to {self.context - 1}")
        if not isinstance(start, tuple):
            return self.cos[start:stop], self.sin[start:stop]
        if len(start) != x.shape[0]:
            raise ShapeError(f"got {len(start)} start positions for {x.shape[0]} rows; pass one per row")
        place = position_ids(start, x.shape[1], x.device)
        return self.cos[place], self.sin[place]

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, context={self.context}, base={self.base}"


def rotary_for_layers(layers: int, head_dim: int, context: int, base: float) -> list[Rotary]:
    """Return a `Rotary` for each layer; their tables share memory until the model is converted.

    A single shared module would have its buffers listed once per layer, and torch.func.functional_call, which swaps
    tensors by name, would get several values for one tensor.
    """
    first = Rotary(head_dim, context, base)
    found = [first]
    for _ in range(layers - 1):
        other = copy.deepcopy(first)
        other.cos, other.sin = first.cos.detach(), first.sin.detach()
        found.append(other)
    return found


def check_rotary(head_dim: int, context: int, base: float) -> None:
    """Check the arguments of a rotary embedding."""
    check_positive_int(head_dim=head_dim, context=context)
    check_positive_number(rotary_base=base)
    if head_dim % 2:
        raise ConfigError(f"head_dim={head_dim} must be even: a rotary embedding rotates pairs of features")
