"""PowerNorm's training step: forward with running statistics, and the paper's approximate backward pass.

Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers", Algorithm 2. With the batch's quadratic
mean psi_B^2 = mean(x^2), momentum m, and all means over the scope:

    forward     xhat  = x / psi                                 psi: running value of the previous step
    backward    dx    = (dxhat - nu xhat) / psi                 nu: running value of the previous step
                nu    = nu (1 - m mean(xhat^2)) + m mean(dxhat xhat)
                psi^2 = (1 - m) psi^2 + m psi_B^2

nu approximates the gradient through psi, which depends on inputs of earlier steps.

Both buffers are updated in the backward pass, so that activation checkpointing (torch.utils.checkpoint), which runs the
forward pass twice, uses the same psi both times. Without a backward pass, psi is updated in the forward pass. Reentrant
checkpointing hides from the first forward pass that a backward pass will follow, so it raises an error.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from normscope.errors import TransformError
from normscope.ops.norm.distributed import sum_over_ranks
from normscope.ops.norm.reference import Affine, NormStatistics, apply_affine, compute_statistics, prepare_input
from normscope.ops.norm.statistic import RMS
from normscope.scope import Plan


@dataclass(frozen=True)
class PowerNormState:
    """The running statistics of PowerNorm, updated in place, and their momentum."""

    psi_square: Tensor
    nu: Tensor
    batches: Tensor
    momentum: float

    def update_psi(self, statistics: NormStatistics) -> None:
        """Update psi^2 with the statistics of a batch. Statistics over padding alone are ignored."""
        step = self.momentum * (statistics.count > 0).to(statistics.second_moment.dtype)
        old = self.psi_square.to(statistics.second_moment.dtype).reshape(statistics.second_moment.shape)
        self.psi_square.copy_(((1 - step) * old + step * statistics.second_moment).reshape(self.psi_square.shape))
        self.batches.add_((statistics.count > 0).any().to(self.batches.dtype))


def power_norm_step(
    x: Tensor, plan: Plan, state: PowerNormState, *, eps: float, affine: Affine, mask: Tensor | None, sync: bool
) -> Tensor:
    """Normalize with the running quadratic mean of earlier batches, and update it."""
    if _is_reentrant_recomputation():
        raise TransformError(
            "PowerNorm cannot be recomputed by reentrant checkpointing: it would update its statistics twice\n"
            "fix: torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    work, mask = prepare_input(x, plan, mask)
    with torch.no_grad():
        statistics = compute_statistics(work, plan, RMS, mask, sync)
        psi = (state.psi_square.to(work.dtype).reshape(statistics.second_moment.shape) + eps).sqrt()
    y = cast(Tensor, _PowerNormFunction.apply(work, psi, state, statistics, plan, sync))
    if not y.requires_grad:  # no backward pass will update it
        with torch.no_grad():
            state.update_psi(statistics)
    return apply_affine(y, affine, mask, x)


def _is_reentrant_recomputation() -> bool:
    """Return whether this is a forward pass inside a backward pass that is not torch's non-reentrant recomputation."""
    if torch.compiler.is_dynamo_compiling() or torch._C._current_graph_task_id() == -1:
        return False
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is None or hooks[0].__module__ != "torch.utils.checkpoint"


class _PowerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, psi: Tensor, state: PowerNormState, statistics: NormStatistics, plan: Plan, sync: bool
    ) -> Tensor:
        xhat = x / psi
        ctx.save_for_backward(xhat, psi)
        ctx.state, ctx.statistics, ctx.plan, ctx.sync = state, statistics, plan, sync
        return xhat

    @staticmethod
    @torch.autograd.function.once_differentiable  # the approximate backward pass is not a gradient
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        xhat, psi = ctx.saved_tensors
        state, statistics, dims = ctx.state, ctx.statistics, ctx.plan.reduced
        divisor = statistics.count.clamp(min=1)
        # Padding is zero in xhat and does not contribute to the means.
        power = sum_over_ranks(xhat.square().sum(dims, keepdim=True), ctx.sync) / divisor
        dot = sum_over_ranks((grads[0] * xhat).sum(dims, keepdim=True), ctx.sync) / divisor
        nu = state.nu.to(xhat.dtype).reshape(psi.shape)
        dx = (grads[0] - nu * xhat) / psi
        new_nu = nu * (1 - state.momentum * power) + state.momentum * dot
        state.nu.copy_(new_nu.reshape(state.nu.shape))
        state.update_psi(statistics)
        return dx, *(None,) * 5
