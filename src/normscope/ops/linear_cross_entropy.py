"""Mean cross-entropy of logits x W^T that are never all in memory: they are computed in chunks of rows.

With 50,257 tokens in the vocabulary, the logits of 1,024 positions take 206 MB, and their gradient as much again. Here
each chunk of logits becomes its gradient, and then its part of the gradients of x and W, before the next chunk is
computed. The matrix products are the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from normscope.ops.cross_entropy import IGNORE_INDEX, cross_entropy, loss_and_gradient
from normscope.ops.kernel_mode import is_function_transform_active

CHUNK = 1 << 23
"""Logits per chunk: 32 MB, while the product still reads W only once per 160 rows or so."""
LARGE = 1 << 24
"""Below this many logits (64 MB) there is little memory to save."""


def is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    """Whether the logits are large, and nothing needs to see them: no tracing, compilation or function transform."""
    rows = x.numel() // x.shape[-1]
    return rows * weight.shape[0] > LARGE and not (
        has_torch_function((x, weight)) or torch.compiler.is_compiling() or is_function_transform_active()
    )


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, cap: float | None = None) -> Tensor:
    """Return `cross_entropy(x @ weight.T, targets, cap)` for x (rows, d), without a second derivative.

    >>> x, weight, targets = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([1, -1, 0])
    >>> torch.testing.assert_close(linear_cross_entropy(x, weight, targets), cross_entropy(x @ weight.T, targets))
    """
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, targets, cap)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients of x and W in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, cap: float | None) -> Tensor:
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        dx = torch.empty_like(x) if needs_x else None
        dweight = torch.zeros_like(weight) if needs_weight else None
        count = int((targets != IGNORE_INDEX).sum())
        total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        size = max(1, CHUNK // weight.shape[0])
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            logits = F.linear(x[rows], weight)
            share = int((targets[rows] != IGNORE_INDEX).sum()) / max(count, 1)
            if share == 0 and count:  # the mean of nothing is NaN
                if dx is not None:
                    dx[rows] = 0
                continue
            if dx is None and dweight is None:
                total += share * cross_entropy(logits, targets[rows], cap)
                continue
            loss, gradient = loss_and_gradient(logits, targets[rows], cap)
            total += share * loss
            gradient = gradient.to(logits.dtype).mul_(share)
            if dx is not None:
                dx[rows] = gradient @ weight.to(gradient.dtype)
            if dweight is not None:
                dweight += gradient.t() @ x[rows].to(gradient.dtype)
        ctx.save_for_backward(dx, dweight)
        return total if count else total * torch.nan

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight = ctx.saved_tensors
        return None if dx is None else dx * grad, None if dweight is None else dweight * grad, None, None
