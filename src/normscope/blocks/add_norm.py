"""Add a branch to the residual stream and normalize the sum."""

from typing import TypeGuard

from torch import Tensor, nn

from normscope.blocks.hooks import has_hooks
from normscope.blocks.norm import LayerNorm, RMSNorm
from normscope.blocks.norm.base import Norm
from normscope.ops.norm import normalize
from normscope.ops.norm.reference import default_eps


def add_and_normalize(
    stream: Tensor, branch: Tensor, norm: nn.Module, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `stream + branch` and its norm.

    A row norm without hooks is fused with the addition, in one pass over memory, with the same results.
    """
    if mask is None and _is_plain(norm) and stream.shape == branch.shape and not has_hooks(norm):
        plan, broadcast_shape, is_row_norm = norm._plan_for(stream.shape)
        return normalize.add_and_normalize(
            stream,
            branch,
            plan,
            statistic=norm.statistic,
            eps=default_eps(stream) if norm.eps is None else norm.eps,
            affine=norm._affine(broadcast_shape, is_row_norm),
        )
    total = stream + branch
    return total, norm(total) if mask is None else norm(total, mask=mask)


def _is_plain(norm: nn.Module) -> TypeGuard[Norm]:
    """Return whether the norm is stateless and not a subclass, which might override anything."""
    known: tuple[type[Norm], ...] = (Norm, LayerNorm, RMSNorm)
    return isinstance(norm, Norm) and type(norm) in known and norm.state is None and not norm.sync
