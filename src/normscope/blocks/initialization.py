"""How weights start: named values that a model chooses from.

A weight's start depends on its role: an `input` projection reads the residual stream, a `residual` projection
writes to it, the `head` gives the logits, an `embedding` gives tokens their vectors and a `position` the places; a
`tied` table is embedding and head in one.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from normscope.blocks.checks import check_tensor, lookup
from normscope.checks import check_positive_int, check_positive_number, is_number
from normscope.errors import ConfigError, DtypeError, ShapeError

Role = Literal["input", "residual", "head", "embedding", "position", "tied"]


@dataclass(frozen=True)
class Initialization:
    """A normal distribution for every weight, whose standard deviation depends on role, size and depth.

    Args:
        name: what configs call it.
        std: (role, fan_in, fan_out, depth) -> standard deviation; zero starts the weight at zero.
        cut: draw again beyond this many standard deviations; None keeps the tails.
        corrected: widen the normal so that the standard deviation is right after the cut, not before.
    """

    name: str
    std: Callable[[Role, int, int, int], float]
    truncate_at: float | None = None
    corrected: bool = False

    def __post_init__(self) -> None:
        if not callable(self.std):
            raise ConfigError(f"std={self.std!r} must be a function of role, fan_in, fan_out and depth")
        if self.truncate_at is not None:
            truncated_normal_std(self.truncate_at)  # refuses a cut that leaves nothing

    def fill_(self, weight: Tensor, role: Role = "input", depth: int = 1) -> None:
        """Draw a weight of shape (fan_out, fan_in), or (entries, width) for an embedding, in place."""
        std = self._checked_std(weight, role, depth)
        if self.truncate_at is not None and self.corrected:
            std /= truncated_normal_std(self.truncate_at)
        with torch.no_grad():
            _draw_(weight, std, self.truncate_at)

    def _checked_std(self, weight: Tensor, role: Role, depth: int) -> float:
        check_tensor(weight, "an initialization")
        if not weight.is_floating_point():
            raise DtypeError(f"an initialization fills weights of floats, but got {weight.dtype}")
        if weight.dim() != 2:
            raise ShapeError(f"a weight has two dimensions, fan_out and fan_in, but got shape {tuple(weight.shape)}")
        if role not in get_args(Role):
            raise ConfigError(f"role={role!r}: choose one of {', '.join(get_args(Role))}")
        check_positive_int(depth=depth)
        fan_out, fan_in = weight.shape
        std = self.std(role, fan_in, fan_out, depth)
        if not (is_number(std) and 0 <= std < math.inf):
            raise ConfigError(f"the initialization {self.name!r} gave std={std!r}; it must be zero or more, and finite")
        return std


def _draw_(weight: Tensor, std: float, truncate_at: float | None) -> None:
    """Normal numbers; those beyond the cut are drawn again, until none is left there.

    This is what torch's trunc_normal_ does by way of the inverse error function, in a fraction of the time.
    """
    if weight.is_meta or isinstance(weight, FakeTensor):  # nothing to fill; and a fake one has no numbers to look at
        return
    if std == 0:
        weight.zero_()
        return
    weight.normal_(0.0, std)
    if truncate_at is None:
        return
    places = (weight.abs() > truncate_at * std).nonzero(as_tuple=True)
    while places[0].numel():
        drawn = torch.empty_like(places[0], dtype=weight.dtype).normal_(0.0, std)
        weight[places] = drawn
        beyond = drawn.abs() > truncate_at * std
        places = tuple(place[beyond] for place in places)


def initialize(model: nn.Module) -> None:
    """Start every part of a model anew, as its own `reset_parameters` says.

    It is also what fills a model that was made on the meta device:

    >>> with torch.device("meta"):  # no memory yet, and no time
    ...     model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    >>> initialize(model.to_empty(device="cpu"))
    >>> bool(model[0].weight.abs().max() < 1)
    True
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"initialise takes a model, a torch.nn.Module, but got {type(model).__name__}")
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def truncated_normal_std(truncate_at: float) -> float:
    """The standard deviation of a standard normal that is cut off beyond +-cut.

    >>> round(truncated_normal_std(3), 4), round(truncated_normal_std(2), 4)
    (0.9866, 0.8796)
    """
    check_positive_number(truncate_at=truncate_at)
    density = math.exp(-truncate_at * truncate_at / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * truncate_at * density / math.erf(truncate_at / math.sqrt(2)))


def _glorot(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """2 / (fan_in + fan_out), between what keeps the signal's variance forward and backward. Glorot, Bengio 2010."""
    if role == "tied":  # the head reads a normalized stream, of length sqrt(width): so its logits are of size one
        return 1 / math.sqrt(fan_in)
    return 1.0 if role in ("embedding", "position") else math.sqrt(2 / (fan_in + fan_out))


def _gpt2(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """0.02, and less for what is added to the stream: two projections a block, so 1 / sqrt(2 depth). Radford 2019."""
    return 0.02 / math.sqrt(2 * depth) if role == "residual" else 0.02


def _nanochat(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """Aware of the fan, with projections and head at zero: every block starts as the identity, the loss as ln V."""
    if role in ("embedding", "position"):
        return 1.0
    if role == "tied":  # blocks that do nothing yet hand a token's own row to the head, where its logit is std * width
        return 1 / fan_in
    if role in ("residual", "head"):
        return 0.0
    return min(1.0, math.sqrt(fan_out / fan_in)) / math.sqrt(fan_in)


GLOROT_TRUNCATED = Initialization("glorot-truncated", _glorot, truncate_at=3.0)
GLOROT_CORRECTED = dataclasses.replace(GLOROT_TRUNCATED, name="glorot-corrected", corrected=True)
GPT2 = Initialization("gpt2", _gpt2)
NANOCHAT = Initialization("nanochat", _nanochat)

INITIALIZATIONS: Mapping[str, Initialization] = {
    init.name: init for init in (GLOROT_TRUNCATED, GLOROT_CORRECTED, GPT2, NANOCHAT)
}


def get_initialization(name: "str | Initialization") -> Initialization:
    """The initialization of this name; an `Initialization` of one's own passes through."""
    if isinstance(name, Initialization):
        return name
    return lookup("initialization", name, INITIALIZATIONS)
