"""RMSNorm: divide each row by its root mean square."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import RMSNorm
from normscope.learning.inputs import TEXT_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import layer_references
from normscope.ops.norm.reference import default_eps

TOKENS = (((3.0, -4.0, 0.0), (10.0, 10.0, 10.0)),)
"""A sequence of two tokens of width three."""


@Step()
def squares(x: Tensor) -> Tensor:
    """Square every value: signs vanish, and large values count for more."""
    return x.square()


@Step()
def mean_square(squares: Tensor) -> Tensor:
    """Mean of the squares of each row: one value per token, over {count} features."""
    return squares.mean(-1, keepdim=True)


def from_vector_norm(x: Tensor, eps: float) -> Tensor:
    """The same from the vector's norm, which is sqrt(d) times its RMS."""
    return torch.hypot(x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5, torch.tensor(eps).sqrt())


@Step({"the vector norm / sqrt(d)": from_vector_norm})
def rms(mean_square: Tensor, eps: float) -> Tensor:
    """RMS = sqrt(mean square + eps). eps avoids division by zero."""
    return torch.sqrt(mean_square + eps)


@Step({"torch.nn.functional.rms_norm": lambda x, eps: F.rms_norm(x, x.shape[-1:], eps=eps)})
def scaled(x: Tensor, rms: Tensor) -> Tensor:
    """Divide each row by its RMS. The direction and the shape stay the same."""
    return x / rms


@Step(layer_references(nn.RMSNorm, RMSNorm, axis=-1))
def result(scaled: Tensor, weight: Tensor) -> Tensor:
    """Multiply by the weight (gain), one per feature: a learned parameter that starts at 1. There is no bias; nanochat
    omits the weight, too."""
    return scaled * weight


@Step()
def output_rms(result: Tensor) -> Tensor:
    """Check: the RMS of each output row is 1 for any scale of the input (a row of zeros stays zero)."""
    return result.square().mean(-1).sqrt()


@Topic(
    "normalize each row by its root mean square",
    title="RMSNorm, over ... [d]",
    example=TOKENS,
    check=needs_rank("RMSNorm", 1),
    axes=TEXT_AXES,
)
def rmsnorm(x: Tensor, eps: float | None = None) -> Lesson:
    """Each row (in a transformer: one token) is divided by its root mean square. RMSNorm is LayerNorm without centering
    and without bias: the scaling is what makes LayerNorm work, and this is cheaper."""
    given = {"x": x, "weight": torch.ones(x.shape[-1]), "eps": default_eps(x) if eps is None else eps}
    return Lesson(given, {"count": x.shape[-1]})
