"""Linear: a product of matrices."""

import torch
from torch import Tensor, nn

from normscope.blocks.linear import Linear
from normscope.learning.checks import check_rank
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

PEOPLE = ((1.8, 80.0), (1.6, 50.0))
"""Two people: height in metres and weight in kilograms."""

WEIGHT = ((-0.1126, -0.3855), (0.0426, 0.5514), (-0.3952, 0.6278))
"""Three figures from two."""


@step()
def products(x: Tensor, weight: Tensor) -> Tensor:
    """Every output has a weight for every input. Multiply: a row of products for each output."""
    return x[..., None, :] * weight


@step({"torch.matmul": lambda x, weight: torch.matmul(x, weight.T)})
def sums(products: Tensor) -> Tensor:
    """Add up each row: an output is a weighted sum of all the inputs. (Products and sums together are the product of
    matrices x @ weight.T.)"""
    return products.sum(-1)


def layer_of(kind: type[nn.Linear], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What a real layer gives that has these weights."""
    layer = kind(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    y: Tensor = layer(x)
    return y


@step(
    {
        "torch.nn.Linear": lambda x, weight, bias: layer_of(nn.Linear, x, weight, bias),
        "normscope.Linear": lambda x, weight, bias: layer_of(Linear, x, weight, bias),
    }
)
def result(sums: Tensor, bias: Tensor) -> Tensor:
    """Add the bias, which starts at 0."""
    return sums + bias


def linear(x: Tensor | None) -> Lesson:
    if x is None:
        x, weight = torch.tensor(PEOPLE), torch.tensor(WEIGHT)
        remark = "Here two people, each with height and weight, get three figures each."
    else:
        width = check_rank(x, "Linear", least=1).shape[-1]
        weight = seeded(lambda: Linear(width, 3).weight.detach())
        remark = "The weights are those of a new layer."
    return Lesson(
        title="Linear",
        summary=f"""A linear layer changes how many features there are, here from {x.shape[-1]} to 3: y = x W^T +
        b. Every output is a weighted sum of all the inputs of its row, and rows do not see each other. {remark}""",
        given={"x": x, "weight": weight, "bias": torch.zeros(3)},
        steps=[products, sums, result],
    )
