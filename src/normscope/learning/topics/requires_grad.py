"""requires_grad: gradients, frozen weights and buffers."""

import torch
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm
from normscope.learning.inputs import needs_rank
from normscope.learning.lesson import Lesson, Step, Topic


@Step()
def y(x: Tensor, w: Tensor) -> Tensor:
    """Forward. Because w has requires_grad=True, torch records how y is computed."""
    return (x * w).sum()


@Step({"the analytic gradient dy/dw = x": lambda x: x})
def w_grad(y: Tensor, w: Tensor) -> Tensor | None:
    """Backward: torch walks the recorded graph in reverse and computes dy/dw for each weight."""
    y.backward()
    return w.grad


@Step()
def x_grad(x: Tensor) -> Tensor | None:
    """x has requires_grad=False, as data usually has, so it gets no gradient."""
    return x.grad


def sgd_step(x: Tensor, w: Tensor) -> Tensor:
    """Take one step of torch's SGD, on a copy."""
    weight = nn.Parameter(w.detach().clone())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch.autograd.backward((x * weight).sum())
    optimizer.step()
    return weight


@Step({"torch.optim.SGD": sgd_step})
def w_updated(w: Tensor, w_grad: Tensor) -> Tensor:
    """Gradient descent: to decrease y, take a small step (lr = 0.1) against the gradient."""
    return w.detach() - 0.1 * w_grad


@Step()
def y_updated(x: Tensor, w_updated: Tensor) -> Tensor:
    """y has decreased, by 0.1 times the sum of the squared gradient."""
    return (x * w_updated).sum()


@Step()
def frozen_grad(x: Tensor, w: Tensor) -> Tensor | None:
    """A frozen weight (requires_grad=False) takes part in the forward pass but gets no gradient, and an optimizer does
    not change it. (A trainable bias still gets its own.)"""
    frozen = w.detach().requires_grad_(False)
    bias = torch.zeros_like(x).requires_grad_()
    (x * frozen + bias).sum().backward()
    return frozen.grad


@Step()
def requires_grad_in_inference_mode(x: Tensor, w: Tensor) -> bool:
    """Inference needs no gradients: in inference mode torch records nothing, which saves memory and time."""
    with torch.inference_mode():
        untracked = (x * w).sum()
    return untracked.requires_grad


@Step()
def parameters_and_buffers() -> str:
    """The learned values are parameters (requires_grad=True). Running statistics, as in BatchNorm, are buffers: saved
    with the model, but not changed by the optimizer."""
    layer = BatchNorm(2)
    parameters = ", ".join(name for name, _ in layer.named_parameters())
    buffers = ", ".join(name for name, _ in layer.named_buffers())
    return f"parameters: {parameters}\nbuffers: {buffers}"


@Topic(
    "gradients, frozen weights, buffers",
    title="requires_grad",
    example=(1.0, 2.0),
    check=needs_rank("this example", 1),
)
def requires_grad(x: Tensor) -> Lesson:
    """requires_grad=True tells autograd to record all operations on a tensor, so that its gradient can be computed. It
    is set for parameters. Data, frozen weights and buffers do not need it, nor does inference."""
    return Lesson({"x": x, "w": torch.full_like(x, 0.5).requires_grad_()})
