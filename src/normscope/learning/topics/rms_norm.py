"""RMSNorm: every row divided by its root mean square."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import RMSNorm
from normscope.learning.checks import axis_names, check_eps, check_rank
from normscope.learning.lesson import Lesson, step
from normscope.ops.norm_reference import default_eps

TOKENS = (((3.0, -4.0, 0.0), (10.0, 10.0, 10.0)),)
"""A text of two tokens of width three."""


@step()
def squares(x: Tensor) -> Tensor:
    """Square every number: the signs go, and large numbers count for more."""
    return x.square()


@step()
def mean_square(squares: Tensor) -> Tensor:
    """The mean of the squares of each row: one number for each token, from {count} features."""
    return squares.mean(-1, keepdim=True)


def by_length(x: Tensor, eps: float) -> Tensor:
    """The same by way of the vector's length, which is sqrt(d) times its rms."""
    return torch.hypot(x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5, torch.tensor(eps).sqrt())


@step({"the vector's length / sqrt(d)": by_length})
def rms(mean_square: Tensor, eps: float) -> Tensor:
    """The root of it, the root mean square: how strong the row is. The small eps keeps a row of zeros from dividing by
    zero."""
    return torch.sqrt(mean_square + eps)


@step({"torch.nn.functional.rms_norm": lambda x, eps: F.rms_norm(x, x.shape[-1:], eps=eps)})
def scaled(x: Tensor, rms: Tensor) -> Tensor:
    """Divide every number by its row's strength. The direction stays, and so does the shape."""
    return x / rms


@step(
    {
        "torch.nn.RMSNorm": lambda x, eps: nn.RMSNorm(x.shape[-1], eps)(x),
        "normscope.RMSNorm": lambda x, eps: RMSNorm(x.shape[-1], eps)(x),
    }
)
def result(scaled: Tensor, weight: Tensor) -> Tensor:
    """A gain for each feature, which is learnt and starts at 1. There is no bias, and nanochat leaves out the
    gain too."""
    return scaled * weight


@step()
def strength(result: Tensor) -> Tensor:
    """Proof: the root mean square of each row of the result. It is 1, however large or small the numbers were (a row
    of zeros stays one)."""
    return result.square().mean(-1).sqrt()


def rmsnorm(x: Tensor | None, eps: float | None = None) -> Lesson:
    x = torch.tensor(TOKENS) if x is None else check_rank(x, "RMSNorm", least=1)
    if eps is not None:
        check_eps(eps)
    return Lesson(
        title="RMSNorm, over ... [d]",
        summary="""Every row, which in a transformer is one token, is divided by its root mean square. It is
        LayerNorm without the centring and without the bias: what makes LayerNorm work is the scaling, and this is
        cheaper.""",
        given={
            "x": x,
            "weight": torch.ones(x.shape[-1]),
            "eps": default_eps(x) if eps is None else eps,
            "count": x.shape[-1],
        },
        steps=[squares, mean_square, rms, scaled, result, strength],
        axes=axis_names(x, "b s d"),
        hidden=frozenset({"count"}),
    )
