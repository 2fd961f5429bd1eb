"""The MLP of a block: up, ReLU^2, down."""

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.mlp import MLP
from normscope.blocks.mlp import relu2 as real_relu2
from normscope.learning.checks import axis_names, check_rank
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

TOKENS = (((0.5, -1.2, 2.0, -0.1), (1.0, 0.0, 3.0, -5.0)),)
"""A text of two tokens of width four."""


@step({"torch.nn.functional.linear": lambda x, up_weight: F.linear(x, up_weight)})
def up(x: Tensor, up_weight: Tensor) -> Tensor:
    """Unfold every token, from {width} features to four times as many, {hidden}: room for patterns that overlap in the
    narrow form."""
    return x @ up_weight.T


@step({"torch.nn.functional.relu": lambda up: F.relu(up)})
def relu(up: Tensor) -> Tensor:
    """Let only what is above zero pass."""
    return up.clamp(min=0)


@step({"normscope's relu2": lambda up: real_relu2(up)})
def activated(relu: Tensor) -> Tensor:
    """And square it: strong signals count for more, weak ones for less."""
    return relu.square()


@step({"normscope.MLP": lambda x, mlp: mlp(x)})
def result(activated: Tensor, down_weight: Tensor) -> Tensor:
    """Fold it back to {width} features, so that it can be added to the stream it came from."""
    return activated @ down_weight.T


def mlp(x: Tensor | None) -> Lesson:
    own = x is not None
    x = torch.tensor(TOKENS) if x is None else check_rank(x, "MLP", least=1)
    width = x.shape[-1]
    layer = seeded(lambda: MLP(width))
    if not own:
        with torch.no_grad():
            layer.up.weight.fill_(1.0)
    remark = (
        "" if own else " The weights of the way up are all 1 here, so that each number there is the sum of its token."
    )
    return Lesson(
        title="MLP with ReLU^2",
        summary=f"""Where attention looks, the MLP thinks: it works on every token by itself and never mixes them.
        Up to four times the width, through ReLU^2, and down again; no biases.{remark}""",
        given={
            "x": x,
            "up_weight": layer.up.weight.detach(),
            "down_weight": layer.down.weight.detach(),
            "mlp": layer,
            "width": width,
            "hidden": layer.up.out_features,
        },
        steps=[up, relu, activated, result],
        axes=axis_names(x, "b s d"),
        hidden=frozenset({"mlp", "width", "hidden"}),
    )
