"""LayerNorm: normalize each row by its mean and variance."""

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import LayerNorm
from normscope.learning import norm_steps
from normscope.learning.inputs import TEXT_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic

mean, variance = norm_steps.mean, norm_steps.variance
standardized = Step({"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps)})(
    norm_steps.standardized
)
result = Step(norm_steps.layer_references(nn.LayerNorm, LayerNorm, axis=-1))(norm_steps.result)


@Step()
def output_std(result: Tensor) -> Tensor:
    """Check: the standard deviation of each output row is 1 up to eps, or 0 for a row without variance."""
    return result.std(-1, correction=0)


@Topic(
    "normalize each row by its mean and variance",
    title="LayerNorm, over ... [d]",
    example=((1.0, 2.0, 3.0, 4.0, 5.0), (10.0, 20.0, 30.0, 40.0, 50.0), (0.5, 0.5, 0.5, 0.5, 0.5)),
    check=needs_rank("LayerNorm", 1),
    axes=TEXT_AXES,
)
def layernorm(x: Tensor, is_example: bool, eps: float = 1e-5) -> Lesson:
    """Each row (in a transformer: one token) is centered and scaled by its own mean and variance. Rows are independent
    of each other, so neither the batch size nor the other tokens matter."""
    note = "The second row gives the same output as the first; the third, with variance 0, stays finite."
    given = norm_steps.norm_inputs(x, x.shape[-1:], eps, (-1,))
    return Lesson(given, {"count": x.shape[-1]}, note if is_example else "")
