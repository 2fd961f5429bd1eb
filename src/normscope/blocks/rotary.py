"""Rotary position embedding (RoPE)."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from numbers import Integral
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.cache import Positions, max_start, position_ids
from normscope.blocks.checks import check_tensor
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_positive_int, check_positive_number
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, ShapeError
from normscope.ops.norm.reference import check_dense
from normscope.ops.rotary import apply_rotary


class Rotary(BaseModule):
    r"""Rotary position embedding: rotates pairs of features by position * base^(-i/half).

    The dot product of a rotated query and key depends on their distance only. A `scaling` may multiply them as well.

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
        rotary_dim: number of features of a head that are rotated; None for all. With fewer, pair i of a head, its
            features i and i + head_dim / 2, is rotated if i < rotary_dim / 2.
        scaling: change of the frequencies for contexts longer than in pretraining.

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

    def __init__(
        self,
        head_dim: int,
        context: int,
        base: float = 10000.0,
        *,
        rotary_dim: int | None = None,
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        check_rotary(head_dim, context, base, rotary_dim)
        self.head_dim, self.context, self.base, self.scaling = head_dim, context, base, scaling
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self._tables_of: tuple[Rotary, ...] = ()  # a tuple, so that it is not registered as a submodule
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
        half = self.rotary_dim // 2
        # In float64 on the CPU, whatever the device: at position 100,000 float32 loses two digits of the angle.
        speed = self.base ** (-torch.arange(half, dtype=torch.float64, device="cpu") / half)
        speed = speed if self.scaling is None else self.scaling.scale(speed, self.base)
        speed = F.pad(speed, (0, (self.head_dim - self.rotary_dim) // 2))  # the other pairs are rotated by zero
        place = torch.arange(self.context, dtype=torch.float64, device="cpu")
        angle = place[:, None, None] * speed  # position, 1 (heads), half
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())
        if self.scaling is not None:
            self.cos[..., :half] *= self.scaling.attention_factor
            self.sin[..., :half] *= self.scaling.attention_factor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow `Module.to(...)`, but recompute the tables rather than rounding them to a lower precision."""
        wanted = fn(self.cos.new_empty(0))
        dtype = torch.promote_types(wanted.dtype, torch.float32)
        if dtype == self.cos.dtype and not self.cos.is_meta:
            self.cos, self.sin = self.cos.to(wanted.device), self.sin.to(wanted.device)
        elif not self._share_tables(dtype, wanted.device):
            shape = self.cos.shape
            self.cos = torch.empty(shape, dtype=dtype, device=wanted.device)
            self.sin = torch.empty(shape, dtype=dtype, device=wanted.device)
            self.reset_parameters()
        return self

    def _share_tables(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Take the tables of the layer to share them with; False if it has none of this dtype and device."""
        for other in self._tables_of:
            if (other.cos.dtype, other.cos.device) == (dtype, device):
                self.cos, self.sin = other.cos.detach(), other.sin.detach()
                return True
        return False

    def forward(self, x: Tensor, start: Positions) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, start)
        return apply_rotary(x, *self.tables(x, start))

    def tables(self, x: Tensor, start: Positions) -> tuple[Tensor, Tensor]:
        """Return cos and sin for the positions of x, after checking x.

        Their shape is (tokens, 1, head_dim / 2), or (batch, tokens, 1, head_dim / 2) if rows have different positions.
        """
        check_tensor(x, self)
        check_dense(x, self)
        if not x.is_floating_point():
            raise DtypeError(f"{self} takes a tensor of floats, but got {x.dtype}")
        if isinstance(start, Tensor):
            return self.cos[start], self.sin[start]
        starts = start if isinstance(start, tuple) else (start,)
        for first in starts:
            if isinstance(first, bool) or not isinstance(first, int | Integral):
                raise ArgumentTypeError(f"start={first!r} must be an integer, the position of the first token")
        if x.dim() != 4 or x.shape[-1] != self.head_dim:
            raise ShapeError(f"{self} takes (batch, tokens, heads, {self.head_dim}), but got shape {tuple(x.shape)}")
        if self.cos.is_meta and not x.is_meta:  # load_state_dict(assign=True) gives weights to a model, but no tables
            for rotary in (*self._tables_of, self):
                rotary.to_empty(device=x.device)
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
        part = "" if self.rotary_dim == self.head_dim else f", rotary_dim={self.rotary_dim}"
        scaling = "" if self.scaling is None else f", scaling={self.scaling.kind}"
        return f"head_dim={self.head_dim}, context={self.context}, base={self.base}{part}{scaling}"


class Frequencies(NamedTuple):
    """What the frequencies of a layer's rotary embedding depend on."""

    base: float
    scaling: RotaryScaling | None = None


def rotary_for_layers(
    layers: Sequence[Frequencies | None], head_dim: int, context: int, rotary_dim: int | None = None
) -> list[Rotary | None]:
    """Return a `Rotary` for each layer, None for None. Equal tables share memory.

    A single shared module would have its buffers listed once per layer, and torch.func.functional_call, which swaps
    tensors by name, would get several values for one tensor.
    """
    found: list[Rotary | None] = []
    for i, layer in enumerate(layers):
        first = found[layers.index(layer)] if layer in layers[:i] else None
        if layer is None:
            found.append(None)
            continue
        with nullcontext() if first is None else torch.device("meta"):
            rotary = Rotary(head_dim, context, layer.base, rotary_dim=rotary_dim, scaling=layer.scaling)
        if first is not None:
            rotary._tables_of = (first,)
            rotary._share_tables(first.cos.dtype, first.cos.device)
        found.append(rotary)
    return found


def check_rotary(head_dim: int, context: int, base: float, rotary_dim: int | None = None) -> None:
    """Check the arguments of a rotary embedding."""
    check_positive_int(head_dim=head_dim, context=context)
    check_positive_number(rotary_base=base)
    if head_dim % 2:
        raise ConfigError(f"head_dim={head_dim} must be even: a rotary embedding rotates pairs of features")
    if rotary_dim is not None:
        check_positive_int(rotary_dim=rotary_dim)
        if rotary_dim % 2 or rotary_dim > head_dim:
            raise ConfigError(f"rotary_dim={rotary_dim} must be even and at most head_dim={head_dim}")
