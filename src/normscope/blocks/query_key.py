"""QK-norm and rotary embedding of queries and keys."""

from typing import TypeGuard

from torch import Tensor, nn

from normscope.blocks.hooks import has_hooks
from normscope.blocks.norm import RMSNorm
from normscope.blocks.norm.base import Norm
from normscope.blocks.positions import StartPosition
from normscope.blocks.rotary import Rotary
from normscope.ops.norm.reference import default_eps
from normscope.ops.norm.statistic import RMS
from normscope.ops.rotary import rms_norm_rotary


def norm_and_rotate(
    x: Tensor, norm: nn.Module | None, rotary: Rotary | None, mask: Tensor | None, start: StartPosition
) -> Tensor:
    """Apply the norm and the rotary embedding, each if given, to x (b, s, heads, e).

    An RMS norm over each head is fused with the rotary embedding, in one pass over memory, unless either has hooks. The
    results are the same.
    """
    if _is_rms_of_each_head(norm, x) and type(rotary) is Rotary and mask is None and not has_hooks(norm, rotary):
        eps = default_eps(x) if norm.eps is None else norm.eps
        gain = norm._affine(*norm._plan_for(x.shape)[1:]).weight
        return rms_norm_rotary(x, gain, *rotary.tables(x, start), eps)
    x = x if norm is None else norm(x, mask=mask)
    return x if rotary is None else rotary(x, start)


def _is_rms_of_each_head(norm: nn.Module | None, x: Tensor) -> TypeGuard[Norm]:
    """Return whether the norm is a stateless RMS norm over the features of each head, with at most a gain."""
    if type(norm) is not Norm and type(norm) is not RMSNorm:  # a subclass may override anything
        return False
    if norm.statistic != RMS or norm.state is not None or norm.bias is not None:
        return False
    plan, _, _ = norm._plan_for(x.shape)
    return plan.roles == "kkkr" and (norm.axes is None or norm.axes.names == plan.names[3:])
