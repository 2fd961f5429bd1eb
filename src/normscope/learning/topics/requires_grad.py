"""requires_grad: what is tracked, what a gradient is for, and what is left alone."""

import torch
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm
from normscope.learning.checks import check_rank
from normscope.learning.lesson import Lesson, step

EXAMPLE = (1.0, 2.0)


@step()
def y(x: Tensor, w: Tensor) -> Tensor:
    """Forward. Because w has requires_grad=True, torch notes down how y came about."""
    return (x * w).sum()


@step({"dy/dw by hand, which is x": lambda x: x})
def w_gradient(y: Tensor, w: Tensor) -> Tensor | None:
    """Backward: torch reads its notes from the end and says by how much y grows if each weight grows by a little."""
    y.backward()
    return w.grad


@step()
def x_gradient(x: Tensor) -> Tensor | None:
    """x has requires_grad=False, as data has: nobody wants to change it, so no gradient was computed for it."""
    return x.grad


def by_optimiser(x: Tensor, w: Tensor) -> Tensor:
    """A step of torch's own optimiser, on a copy."""
    weight = nn.Parameter(w.detach().clone())
    optimiser = torch.optim.SGD([weight], lr=0.1)
    torch.autograd.backward((x * weight).sum())
    optimiser.step()
    return weight


@step({"torch.optim.SGD": by_optimiser})
def w_after(w: Tensor, w_gradient: Tensor) -> Tensor:
    """What it is for: to make y smaller, go a little way against the gradient (here 0.1 times)."""
    return w.detach() - 0.1 * w_gradient


@step()
def y_after(x: Tensor, w_after: Tensor) -> Tensor:
    """And y is smaller, by 0.1 times the sum of the squared gradient."""
    return (x * w_after).sum()


@step()
def frozen_gradient(x: Tensor, w: Tensor) -> Tensor | None:
    """A frozen weight: with requires_grad=False it takes part in the forward pass as before, but gets no
    gradient, and an optimiser leaves it as it is. (A bias that is not frozen still gets its own.)"""
    frozen = w.detach().requires_grad_(False)
    bias = torch.zeros_like(x).requires_grad_()
    (x * frozen + bias).sum().backward()
    return frozen.grad


@step()
def tracked_in_inference_mode(x: Tensor, w: Tensor) -> bool:
    """To use a trained model no notes are needed: in inference mode torch takes none, which saves memory and time."""
    with torch.inference_mode():
        quiet = (x * w).sum()
    return quiet.requires_grad


@step()
def learnt_and_remembered() -> str:
    """In a layer what is learnt is a parameter (requires_grad=True); what is only remembered, such as BatchNorm's
    running statistics, is a buffer: saved with the model, but no optimiser touches it."""
    layer = BatchNorm(2)
    parameters = ", ".join(name for name, _ in layer.named_parameters())
    buffers = ", ".join(name for name, _ in layer.named_buffers())
    return f"parameters: {parameters}\nbuffers: {buffers}"


def requires_grad(x: Tensor | None) -> Lesson:
    x = torch.tensor(EXAMPLE) if x is None else check_rank(x, "this example", least=1)
    return Lesson(
        title="requires_grad",
        summary="""requires_grad=True on a tensor says: take notes of all that is computed with it, because its
        gradient will be wanted. That is so for what a model learns, its parameters. Data, frozen weights and
        buffers go without, and so does a model that is only used.""",
        given={"x": x, "w": torch.full_like(x, 0.5).requires_grad_()},
        steps=[
            y,
            w_gradient,
            x_gradient,
            w_after,
            y_after,
            frozen_gradient,
            tracked_in_inference_mode,
            learnt_and_remembered,
        ],
    )
