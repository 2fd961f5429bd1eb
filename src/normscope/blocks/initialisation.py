"""How weights start: named values that a model chooses from.

A weight's start depends on its role: an `input` projection reads the residual stream, a `residual` projection
writes to it, the `head` gives the logits, an `embedding` gives tokens their vectors and a `position` the places.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from normscope.blocks.checks import check_above_zero, choose
from normscope.errors import ConfigError, ShapeError

Role = Literal["input", "residual", "head", "embedding", "position"]


@dataclass(frozen=True)
class Initialisation:
    """A normal distribution for every weight, whose standard deviation depends on role, size and depth.

    Args:
        name: what configs call it.
        std: (role, fan_in, fan_out, depth) -> standard deviation; zero starts the weight at zero.
        cut: draw again beyond this many standard deviations; None keeps the tails.
        corrected: widen the normal so that the standard deviation is right after the cut, not before.
    """

    name: str
    std: Callable[[Role, int, int, int], float]
    cut: float | None = None
    corrected: bool = False

    def __post_init__(self) -> None:
        if self.cut is not None:
            truncation_shrinkage(self.cut)  # refuses a cut that leaves nothing

    def fill_(self, weight: Tensor, role: Role = "input", depth: int = 1) -> None:
        """Draw a weight of shape (fan_out, fan_in), or (entries, width) for an embedding, in place."""
        if weight.dim() != 2:
            raise ShapeError(f"a weight has two dimensions, fan_out and fan_in, but got shape {tuple(weight.shape)}")
        if role not in get_args(Role):
            raise ConfigError(f"role={role!r}: choose one of {', '.join(get_args(Role))}")
        fan_out, fan_in = weight.shape
        std = self.std(role, fan_in, fan_out, depth)
        if std == 0:
            nn.init.zeros_(weight)
        elif self.cut is None:
            nn.init.normal_(weight, std=std)
        else:
            if self.corrected:
                std /= truncation_shrinkage(self.cut)
            nn.init.trunc_normal_(weight, std=std, a=-self.cut * std, b=self.cut * std)


def initialise(model: nn.Module) -> None:
    """Start every part of a model anew, as its own `reset_parameters` says.

    It is also what fills a model that was made on the meta device, after `model.to_empty(device=...)`.
    """
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def truncation_shrinkage(cut: float) -> float:
    """The standard deviation of a standard normal that is cut off beyond +-cut.

    >>> round(truncation_shrinkage(3), 4), round(truncation_shrinkage(2), 4)
    (0.9866, 0.8796)
    """
    check_above_zero(cut=cut)
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cut * density / math.erf(cut / math.sqrt(2)))


def _glorot(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """2 / (fan_in + fan_out), between what keeps the signal's variance forward and backward. Glorot, Bengio 2010."""
    return 1.0 if role in ("embedding", "position") else math.sqrt(2 / (fan_in + fan_out))


def _gpt2(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """0.02, and less for what is added to the stream: two projections a block, so 1 / sqrt(2 depth). Radford 2019."""
    return 0.02 / math.sqrt(2 * depth) if role == "residual" else 0.02


def _nanochat(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """Aware of the fan, with projections and head at zero: every block starts as the identity, the loss as ln V."""
    if role in ("embedding", "position"):
        return 1.0
    if role in ("residual", "head"):
        return 0.0
    return min(1.0, math.sqrt(fan_out / fan_in)) / math.sqrt(fan_in)


GLOROT_TRUNCATED = Initialisation("glorot-truncated", _glorot, cut=3.0)
GLOROT_CORRECTED = dataclasses.replace(GLOROT_TRUNCATED, name="glorot-corrected", corrected=True)
GPT2 = Initialisation("gpt2", _gpt2)
NANOCHAT = Initialisation("nanochat", _nanochat)

INITIALISATIONS: Mapping[str, Initialisation] = {
    init.name: init for init in (GLOROT_TRUNCATED, GLOROT_CORRECTED, GPT2, NANOCHAT)
}


def named_initialisation(name: "str | Initialisation") -> Initialisation:
    """The initialisation of this name; an `Initialisation` of one's own passes through."""
    if isinstance(name, Initialisation):
        return name
    return choose("initialisation", name, INITIALISATIONS)
