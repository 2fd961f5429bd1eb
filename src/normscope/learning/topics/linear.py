"""Linear: a matrix product."""

import torch
from torch import Tensor, nn

from normscope.blocks.linear import Linear
from normscope.learning.inputs import needs_rank
from normscope.learning.lesson import Lesson, Step, Topic, seeded

EXAMPLE_WEIGHT = ((-0.1126, -0.3855), (0.0426, 0.5514), (-0.3952, 0.6278))
"""A weight that maps two features to three."""


@Step()
def products(x: Tensor, weight: Tensor) -> Tensor:
    """Each output has one weight per input. Multiply: one row of products per output."""
    return x[..., None, :] * weight


@Step({"torch.matmul": lambda x, weight: torch.matmul(x, weight.T)})
def sums(products: Tensor) -> Tensor:
    """Sum each row: an output is a weighted sum of all inputs. Both steps together are the matrix product x @
    weight.T."""
    return products.sum(-1)


def run_linear(kind: type[nn.Linear], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Run a layer with these weights."""
    layer = kind(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    y: Tensor = layer(x)
    return y


@Step(
    {
        "torch.nn.Linear": lambda x, weight, bias: run_linear(nn.Linear, x, weight, bias),
        "normscope.Linear": lambda x, weight, bias: run_linear(Linear, x, weight, bias),
    }
)
def result(sums: Tensor, bias: Tensor) -> Tensor:
    """Add the bias, which starts at 0."""
    return sums + bias


@Topic(
    "weighted sums of features",
    title="Linear",
    example=((1.8, 80.0), (1.6, 50.0)),
    check=needs_rank("Linear", 1),
)
def linear(x: Tensor, is_example: bool) -> Lesson:
    """A linear layer changes the number of features, here from {width} to 3: y = x W^T + b. Each output is a weighted
    sum of all inputs of its row; rows are independent."""
    width, weight = x.shape[-1], torch.tensor(EXAMPLE_WEIGHT)
    note = "The example maps the height and weight of two people to three outputs each."
    if not is_example:
        weight = seeded(lambda: Linear(width, 3).weight.detach())
        note = "The weights are those of a newly initialized layer."
    return Lesson({"x": x, "weight": weight, "bias": torch.zeros(3)}, {"width": width}, note)
