"""Norms fused with their neighbors: the residual addition before, or the rotary embedding after."""

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from normscope.blocks.cache import Positions
from normscope.blocks.norm import LayerNorm, Norm, RMSNorm
from normscope.blocks.rotary import Rotary
from normscope.ops.norm import normalize
from normscope.ops.norm.reference import default_eps
from normscope.ops.norm.statistic import RMS
from normscope.ops.rotary import rms_norm_rotary


def add_and_normalize(
    stream: Tensor, branch: Tensor, norm: nn.Module, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `stream + branch` and its norm.

    A row norm without hooks is fused with the addition, in one pass over memory, with the same results.
    """
    if mask is None and is_stateless_norm(norm) and stream.shape == branch.shape and not has_hooks(norm):
        plan, broadcast_shape, is_row_norm = norm._plan_for(stream.shape)
        eps, affine = default_eps(stream) if norm.eps is None else norm.eps, norm._affine(broadcast_shape, is_row_norm)
        return normalize.add_and_normalize(stream, branch, plan, statistic=norm.statistic, eps=eps, affine=affine)
    total = stream + branch
    return total, norm(total) if mask is None else norm(total, mask=mask)


def norm_and_rotate(
    x: Tensor, norm: nn.Module | None, rotary: Rotary | None, mask: Tensor | None, start: Positions
) -> Tensor:
    """Apply QK-norm and rotary embedding, each if given, to the queries or keys x (b, s, heads, e).

    An RMS norm over each head is fused with the rotary embedding, in one pass over memory, unless either has hooks. The
    results are the same.
    """
    if norm is not None:
        if type(rotary) is Rotary and mask is None and _is_rms_of_each_head(norm, x) and not has_hooks(norm, rotary):
            eps = default_eps(x) if norm.eps is None else norm.eps
            weight = norm._affine(*norm._plan_for(x.shape)[1:]).weight
            return rms_norm_rotary(x, weight, *rotary.tables(x, start), eps)
        x = norm(x, mask=mask)
    return x if rotary is None else rotary(x, start)


def is_stateless_norm(norm: nn.Module | None) -> TypeGuard[Norm]:
    """Return whether it is a norm without state, and of a class that is known: a subclass may override anything."""
    known: tuple[type, ...] = (Norm, LayerNorm, RMSNorm)
    return isinstance(norm, Norm) and type(norm) in known and norm.state is None and not norm.sync


def _is_rms_of_each_head(norm: nn.Module, x: Tensor) -> TypeGuard[Norm]:
    """Return whether the norm is a stateless RMS norm over the features of each head, with at most a weight."""
    if type(norm) is not Norm and type(norm) is not RMSNorm:  # a subclass may override anything
        return False
    if norm.statistic != RMS or norm.state is not None or norm.bias is not None:
        return False
    plan, _, _ = norm._plan_for(x.shape)
    return plan.roles == "kkkr" and (norm.axes is None or norm.axes.names == plan.names[3:])


def has_hooks(*modules: nn.Module) -> bool:
    """Return whether any of the modules has hooks or a replaced forward method, and so must be called."""
    if torch_module._has_any_global_hook():
        return True
    for module in modules:
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        if hooks != ({}, {}, {}, {}) or "forward" in module.__dict__:
            return True
    return False
