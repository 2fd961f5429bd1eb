"""Queries and keys on their way into attention: each head normalized, then turned by its place."""

from typing import TypeGuard

from torch import Tensor, nn

from normscope.blocks.hooks import has_hooks
from normscope.blocks.norm.layer_and_rms import RMSNorm
from normscope.blocks.norm.norm import Norm
from normscope.blocks.positions import StartPosition
from normscope.blocks.rotary import Rotary
from normscope.ops.norm_reference import default_eps
from normscope.ops.rotary_dispatch import rms_norm_rotary


def norm_and_rotate(
    x: Tensor, norm: nn.Module | None, rotary: Rotary | None, mask: Tensor | None, start: StartPosition
) -> Tensor:
    """Normalize x (b, s, heads, e), if there is a norm, and turn it by its places, if there are positions.

    An rms norm over each head and the turn after it are taken together, in one pass over memory, unless someone
    watches either. All else is as the last two lines say, which give the same numbers.
    """
    if _is_rms_of_each_head(norm, x) and type(rotary) is Rotary and mask is None and not has_hooks(norm, rotary):
        eps = default_eps(x) if norm.eps is None else norm.eps
        gain = norm._affine(*norm._plan_for(x.shape)[1:]).weight
        return rms_norm_rotary(x, gain, *rotary.tables(x, start), eps)
    x = x if norm is None else norm(x, mask=mask)
    return x if rotary is None else rotary(x, start)


def _is_rms_of_each_head(norm: nn.Module | None, x: Tensor) -> TypeGuard[Norm]:
    """Whether each head is divided by its own root mean square, with no more than a gain along its features."""
    if type(norm) is not Norm and type(norm) is not RMSNorm:  # a subclass may do anything
        return False
    if norm.statistic.centers or norm.state is not None or norm.bias is not None:
        return False
    plan, _, _ = norm._plan_for(x.shape)
    return plan.roles == "kkkr" and (norm.axes is None or norm.axes.names == plan.names[3:])
