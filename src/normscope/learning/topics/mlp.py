"""The MLP of a block: up projection, ReLU^2, down projection."""

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.activations import relu2 as real_relu2
from normscope.blocks.mlp import MLP
from normscope.learning.inputs import TEXT_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic, seeded

TOKENS = (((0.5, -1.2, 2.0, -0.1), (1.0, 0.0, 3.0, -5.0)),)
"""A sequence of two tokens of width four."""


@Step({"torch.nn.functional.linear": lambda x, up_weight: F.linear(x, up_weight)})
def up(x: Tensor, up_weight: Tensor) -> Tensor:
    """Up projection: from {width} features to four times as many, {hidden}."""
    return x @ up_weight.T


@Step({"torch.nn.functional.relu": lambda up: F.relu(up)})
def relu(up: Tensor) -> Tensor:
    """ReLU: set negative values to 0."""
    return up.clamp(min=0)


@Step({"normscope's relu2": lambda up: real_relu2(up)})
def activated(relu: Tensor) -> Tensor:
    """Square: strong signals count for more, weak ones for less."""
    return relu.square()


@Step({"normscope.MLP": lambda x, mlp: mlp(x)})
def result(activated: Tensor, down_weight: Tensor) -> Tensor:
    """Down projection: back to {width} features, so that the output can be added to the residual stream."""
    return activated @ down_weight.T


@Topic(
    "up projection, ReLU^2, down projection",
    title="MLP with ReLU^2",
    example=TOKENS,
    check=needs_rank("MLP", 1),
    axes=TEXT_AXES,
)
def mlp(x: Tensor, is_example: bool) -> Lesson:
    """The MLP processes each token separately; only attention mixes tokens. It projects up to four times the width,
    applies ReLU^2, and projects down again, without biases."""
    layer = seeded(lambda: MLP(x.shape[-1]))
    if is_example:
        nn.init.ones_(layer.up.weight)
    given = {"x": x, "up_weight": layer.up.weight.detach(), "down_weight": layer.down.weight.detach()}
    hidden = {"mlp": layer, "width": x.shape[-1], "hidden": layer.up.out_features}
    note = "In this example all up weights are 1, so each hidden value is the sum of its token's features."
    return Lesson(given, hidden, note if is_example else "")
