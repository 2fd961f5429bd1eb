"""PowerNorm's training step: a forward pass by running statistics, and the paper's approximate backward pass.

Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers", Algorithm 2. With the batch's quadratic
mean psi_B^2 = mean(x^2), the newest batch's weight m, and all means over the scope:

    forward     xhat  = x / psi                                 psi is the running one, of the step before
    backward    dx    = (dxhat - nu xhat) / psi                 nu is the running one, of the step before
                nu    = nu (1 - m mean(xhat^2)) + m mean(dxhat xhat)
                psi^2 = (1 - m) psi^2 + m psi_B^2

nu stands in for the gradient through psi, which ran over steps whose inputs are gone.

Both buffers move in the backward pass, once for each: a forward pass that is run a second time to save memory
(torch.utils.checkpoint) then divides by the same psi as the first. Without a backward pass psi moves in the forward.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from normscope.ops.distributed import sum_over_ranks
from normscope.ops.norm_reference import Affine, NormStatistics, apply_affine, compute_statistics, prepare_input
from normscope.ops.statistic import RMS
from normscope.scope import Plan


@dataclass(frozen=True)
class PowerNormState:
    """What PowerNorm remembers, in buffers that are changed in place, and how fast."""

    psi_square: Tensor
    nu: Tensor
    batches: Tensor
    momentum: float

    def update_psi(self, statistics: NormStatistics) -> None:
        """One step of psi^2 towards the batch's; a statistic that saw no real value stays."""
        step = self.momentum * (statistics.count > 0).to(statistics.second_moment.dtype)
        old = self.psi_square.to(statistics.second_moment.dtype).reshape(statistics.second_moment.shape)
        self.psi_square.copy_(((1 - step) * old + step * statistics.second_moment).reshape(self.psi_square.shape))
        self.batches.add_((statistics.count > 0).any().to(self.batches.dtype))


def power_norm_step(
    x: Tensor, plan: Plan, state: PowerNormState, *, eps: float, affine: Affine, mask: Tensor | None, sync: bool
) -> Tensor:
    """Normalize by the running quadratic mean of the batches before, and remember this one."""
    work, mask = prepare_input(x, plan, mask)
    with torch.no_grad():
        statistics = compute_statistics(work, plan, RMS, mask, sync)
        psi = (state.psi_square.to(work.dtype).reshape(statistics.second_moment.shape) + eps).sqrt()
    y = cast(Tensor, _PowerNormFunction.apply(work, psi, state, statistics, plan, sync))
    if not y.requires_grad:  # there will be no backward pass
        with torch.no_grad():
            state.update_psi(statistics)
    return apply_affine(y, affine, mask, x)


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
    @torch.autograd.function.once_differentiable  # the backward pass is no gradient, so it has none of its own
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        xhat, psi = ctx.saved_tensors
        state, statistics, dims = ctx.state, ctx.statistics, ctx.plan.reduced
        divisor = statistics.count.clamp(min=1)
        # Padding is zero in xhat, so it adds nothing to either mean.
        power = sum_over_ranks(xhat.square().sum(dims, keepdim=True), ctx.sync) / divisor
        dot = sum_over_ranks((grads[0] * xhat).sum(dims, keepdim=True), ctx.sync) / divisor
        nu = state.nu.to(xhat.dtype).reshape(psi.shape)
        dx = (grads[0] - nu * xhat) / psi
        new_nu = nu * (1 - state.momentum * power) + state.momentum * dot
        state.nu.copy_(new_nu.reshape(state.nu.shape))
        state.update_psi(statistics)
        return dx, *(None,) * 5
