"""Mean cross-entropy of logits and targets, with the gradient computed in the forward pass.

`fused/cross_entropy.py` has the kernels for the CPU. If a gradient is needed, the forward pass computes and saves it,
so the backward pass only scales it. With a logit cap the logits are saved too, for second derivatives.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops.buffers import (
    addresses,
    any_requires_grad,
    empty_float32,
    empty_float64,
    needs_differentiable_backward,
    to_contiguous_float32,
)
from normscope.ops.kernel_mode import as_operator
from normscope.ops.operation import KernelError, fast_apply, run_kernel
from normscope.ops.registry import choose_cross_entropy
from normscope.ops.threads import thread_pool_for

IGNORE_INDEX = -1
"""The target of rows that are ignored."""


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)


def cross_entropy_reference(logits: Tensor, targets: Tensor, cap: float | None = None) -> Tensor:
    return F.cross_entropy(cap_logits(logits, cap), targets, ignore_index=IGNORE_INDEX)


def cross_entropy(logits: Tensor, targets: Tensor, cap: float | None = None) -> Tensor:
    """Return the mean cross-entropy in nats of logits (rows, vocab_size) and int64 targets; rows with -1 are ignored.

    Logits are converted to at least float32, and soft-capped to +-cap if given.
    """
    if has_torch_function((logits, targets)):  # visible to __torch_function__ modes and subclasses
        watched: Tensor = handle_torch_function(cross_entropy, (logits, targets), logits, targets, cap)
        return watched
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    backend = choose_cross_entropy(logits, targets)
    if backend == "torch":
        return cross_entropy_reference(logits, targets, cap)
    needs_grad = any_requires_grad(logits)
    if backend == "operator":
        loss, _ = _operator(logits, targets, cap, needs_grad)
    elif needs_grad:
        loss, _ = _apply(logits, targets, cap)
    else:
        loss, _ = cross_entropy_fused(logits, targets, cap, False)
    result: Tensor = loss
    return result


def loss_and_gradient(logits: Tensor, targets: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the gradient of the logits, both without autograd."""
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    fused = choose_cross_entropy(logits, targets) == "fused"
    return (cross_entropy_fused if fused else _reference_forward)(logits, targets, cap, True)


def cross_entropy_fused(logits: Tensor, targets: Tensor, cap: float | None, needs_grad: bool) -> tuple[Tensor, Tensor]:
    """Return the loss and the gradient of the logits, which is empty if not needed."""
    rows, d = logits.shape
    z, targets_int64, pool = to_contiguous_float32(logits), targets.contiguous(), thread_pool_for(logits.numel())
    gradient = empty_float32(rows if needs_grad else pool[0], d)
    losses, loss, invalid = empty_float64(rows), empty_float32(), torch.empty(1, dtype=torch.int64, device="cpu")
    arrays = addresses(z, targets_int64, gradient, losses, loss, invalid)
    try:
        run_kernel("cross_entropy", "forward", pool, arrays, (rows, d, IGNORE_INDEX, float(cap or 0.0), needs_grad))
    except KernelError:
        return _reference_forward(logits, targets, cap, needs_grad)
    if (row := int(invalid)) >= 0:
        raise IndexError(f"Target {int(targets_int64[row])} is out of bounds.")
    return loss, gradient if needs_grad else gradient.new_empty(0)


def _reference_forward(logits: Tensor, targets: Tensor, cap: float | None, needs_grad: bool) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(needs_grad):
        leaf = logits.detach().requires_grad_(needs_grad)
        loss = cross_entropy_reference(leaf, targets, cap)
        gradient = torch.autograd.grad(loss, leaf)[0] if needs_grad else loss.new_empty(0)
    return loss.detach(), gradient


class _CrossEntropyFunction(torch.autograd.Function):
    """Returns the loss and its gradient. The gradient is an output too, so that it can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        loss, gradient = cross_entropy_fused(logits, targets, cap, True)
        ctx.save_for_backward(gradient, targets, None if cap is None else logits)
        ctx.cap, ctx.is_shared = cap, False
        return loss, gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, targets, logits = ctx.saved_tensors
        g, v = grads
        ctx.is_shared |= needs_differentiable_backward(g)  # a double-backward graph also holds the gradient
        found = None if g is None else _scale_gradient(gradient, g, ctx.is_shared or _keeps_graph())
        if v is not None:  # double backward: the gradient was differentiated
            second = (
                _hessian_product(gradient, targets, v)
                if logits is None
                else _capped_hessian_product(logits, targets, ctx.cap, v)
            )
            found = second if found is None else found + second
        return found, None, None


_apply = fast_apply(_CrossEntropyFunction)


def _scale_gradient(gradient: Tensor, g: Tensor, is_shared: bool) -> Tensor:
    """Return gradient * g, in place unless the gradient is used again."""
    if is_shared:
        return gradient * g
    return gradient if g.item() == 1.0 else gradient.mul_(g)


def _keeps_graph() -> bool:
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # not in every torch
    return asked is None or bool(asked())


def _hessian_product(gradient: Tensor, targets: Tensor, v: Tensor) -> Tensor:
    """Return the Hessian-vector product (p v - p sum(p v)) / count, with p = softmax(logits) from the gradient."""
    counts = (targets != IGNORE_INDEX)[:, None]
    count = counts.sum()
    at_target = F.one_hot(targets.clamp(min=0), gradient.shape[1]) * counts
    p = gradient * count + at_target
    return p * (v - (p * v).sum(-1, keepdim=True)) / count


def _capped_hessian_product(logits: Tensor, targets: Tensor, cap: float, v: Tensor) -> Tensor:
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        z = logits if further else logits.detach().requires_grad_()
        (first,) = torch.autograd.grad(cross_entropy_reference(z, targets, cap), z, create_graph=True)
        (second,) = torch.autograd.grad(first, z, v, create_graph=further)
    return second


_operator = as_operator("normscope::cross_entropy", cross_entropy_fused)


@_operator.register_fake
def _(logits: Tensor, targets: Tensor, cap: Any, needs_grad: bool) -> tuple[Tensor, Tensor]:
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format) if needs_grad else logits.new_empty(0)
    return logits.new_empty(()), gradient


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _operator_backward(ctx: Any, g: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, ...]:
    if v is not None:
        raise NotImplementedError("the loss has no second derivative as an operator; use it without tracing")
    (gradient,) = ctx.saved_tensors
    return None if g is None else gradient * g, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
