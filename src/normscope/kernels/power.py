"""PowerNorm's training step: a forward pass by running statistics, and the paper's approximate backward pass.

Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers", Algorithm 2. With the batch's quadratic
mean psi_B^2 = mean(x^2), a memory a = 1 - momentum, and all means over the scope:

    forward     xhat  = x / psi                             psi is the running one, of the step before
                psi^2 = a psi^2 + (1 - a) psi_B^2
    backward    dx    = (dxhat - nu xhat) / psi             nu is the running one, of the step before
                nu    = nu (1 - (1 - a) mean(xhat^2)) + (1 - a) mean(dxhat xhat)

nu stands in for the gradient through psi, which ran over steps whose inputs are gone. The two buffers are updated in
place, nu in the backward pass.
"""

from typing import Any, cast

import torch
from torch import Tensor

from normscope.kernels.distributed import sum_over_ranks
from normscope.scope import Plan


class _PowerStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        psi_square: Tensor,
        nu: Tensor,
        count: Tensor,
        plan: Plan,
        eps: float,
        momentum: float,
        sync: bool,
    ) -> Tensor:
        psi = (psi_square + eps).sqrt()
        xhat = x / psi
        ctx.save_for_backward(xhat, psi)
        ctx.nu, ctx.count, ctx.plan, ctx.momentum, ctx.sync = nu, count, plan, momentum, sync
        return xhat

    @staticmethod
    @torch.autograd.function.once_differentiable  # the backward pass is no gradient, so it has none of its own
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        xhat, psi = ctx.saved_tensors
        dims = ctx.plan.reduced
        # Padding is zero in xhat, so it adds nothing to either mean.
        power = sum_over_ranks(xhat.square().sum(dims, keepdim=True), ctx.sync) / ctx.count.clamp(min=1)
        pull = sum_over_ranks((grads[0] * xhat).sum(dims, keepdim=True), ctx.sync) / ctx.count.clamp(min=1)
        nu = ctx.nu.to(xhat.dtype).reshape(psi.shape)
        dx = (grads[0] - nu * xhat) / psi
        updated = nu * (1 - ctx.momentum * power) + ctx.momentum * pull
        ctx.nu.copy_(updated.reshape(ctx.nu.shape))
        return dx, *(None,) * 7


def power_step(
    x: Tensor,
    psi_square: Tensor,
    nu: Tensor,
    count: Tensor,
    *,
    plan: Plan,
    eps: float,
    momentum: float,
    sync: bool,
) -> Tensor:
    """x / psi, with the paper's backward pass, which updates the buffer `nu`.

    `psi_square` broadcasts over `x`; `nu` is the buffer itself, of any shape with as many values.
    """
    return cast(Tensor, _PowerStep.apply(x, psi_square, nu, count, plan, eps, momentum, sync))
