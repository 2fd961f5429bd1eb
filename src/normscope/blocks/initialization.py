"""Weight initializations, by name.

An initialization depends on the role of a weight: an `input` projection reads the residual stream, a `hidden` one does
so in an MLP, a `residual` projection writes to the stream, the `head` computes the logits, an `embedding` maps tokens
to vectors, a `value` embedding maps them to values of attention, a `position` embedding maps positions to vectors, and
a `tied` weight is both embedding and head.
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
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, ShapeError

Role = Literal["input", "hidden", "residual", "head", "embedding", "value", "position", "tied"]

_TABLES = ("embedding", "value", "position")


@dataclass(frozen=True)
class Initialization:
    """A random initialization whose standard deviation depends on role, fan-in, fan-out and depth.

    Args:
        name: name in configs.
        std: (role, fan_in, fan_out, depth) -> standard deviation; 0 gives zeros.
        truncate_at: truncate the normal at this many standard deviations; None for no truncation.
        corrected: widen the normal so that the standard deviation is `std` after truncation.
        uniform: roles that are uniform instead of normal, with the same standard deviation.
    """

    name: str
    std: Callable[[Role, int, int, int], float]
    truncate_at: float | None = None
    corrected: bool = False
    uniform: tuple[Role, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.std):
            raise ConfigError(f"std={self.std!r} must be a function of role, fan_in, fan_out and depth")
        if self.truncate_at is not None:
            truncated_normal_std(self.truncate_at)  # raises for an invalid value

    def fill_(self, weight: Tensor, role: Role = "input", depth: int = 1) -> None:
        """Initialize a weight of shape (fan_out, fan_in), or (entries, width) for an embedding, in place."""
        std = self._compute_std(weight, role, depth)
        if self.truncate_at is not None and self.corrected:
            std /= truncated_normal_std(self.truncate_at)
        with torch.no_grad():
            if role in self.uniform:
                weight.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std)
            else:
                _fill_truncated_normal_(weight, std, self.truncate_at)

    def _compute_std(self, weight: Tensor, role: Role, depth: int) -> float:
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
            raise ConfigError(f"the initialization {self.name!r} returned std={std!r}; must be finite and non-negative")
        return std


def _fill_truncated_normal_(weight: Tensor, std: float, truncate_at: float | None) -> None:
    """Fill a weight with normal values; redraw those beyond the truncation until none is left.

    The distribution is that of torch.nn.init.trunc_normal_, which inverts the error function and is much slower.
    """
    if weight.is_meta or isinstance(weight, FakeTensor):  # no data to fill
        return
    if std == 0:
        weight.zero_()
        return
    weight.normal_(0.0, std)
    if truncate_at is None:
        return
    outside = (weight.abs() > truncate_at * std).nonzero(as_tuple=True)
    while outside[0].numel():
        drawn = torch.empty_like(outside[0], dtype=weight.dtype).normal_(0.0, std)
        weight[outside] = drawn
        beyond = drawn.abs() > truncate_at * std
        outside = tuple(index[beyond] for index in outside)


def initialize(model: nn.Module) -> None:
    """Reinitialize a model: call `reset_parameters` of all its modules.

    Use it to materialize a model from the meta device:

    >>> with torch.device("meta"):  # no memory is allocated
    ...     model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    >>> initialize(model.to_empty(device="cpu"))
    >>> bool(model[0].weight.abs().max() < 1)
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"initialize takes a model, a torch.nn.Module, but got {type(model).__name__}")
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def truncated_normal_std(truncate_at: float) -> float:
    """Return the standard deviation of a standard normal that is truncated at +-truncate_at.

    >>> round(truncated_normal_std(3), 4), round(truncated_normal_std(2), 4)
    (0.9866, 0.8796)
    """
    check_positive_number(truncate_at=truncate_at)
    density = math.exp(-truncate_at * truncate_at / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * truncate_at * density / math.erf(truncate_at / math.sqrt(2)))


def _glorot(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """Variance 2 / (fan_in + fan_out), a compromise between forward and backward variance. Glorot, Bengio 2010."""
    if role == "tied":  # the head reads a normalized stream of norm sqrt(width): logits have unit variance
        return 1 / math.sqrt(fan_in)
    return 1.0 if role in _TABLES else math.sqrt(2 / (fan_in + fan_out))


def _gpt2(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """0.02, divided by sqrt(2 depth) for the two residual projections of each block. Radford et al. 2019."""
    return 0.02 / math.sqrt(2 * depth) if role == "residual" else 0.02


def _nanochat(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """Fan-aware, with residual projections and head at zero: blocks start as the identity, the loss at ln V."""
    if role in _TABLES:
        return 1.0
    if role == "tied":  # at initialization the head reads the token's own row, whose logit is std * width
        return 1 / fan_in
    if role in ("residual", "head"):
        return 0.0
    return min(1.0, math.sqrt(fan_out / fan_in)) / math.sqrt(fan_in)


def _nanochat_2026_07(role: Role, fan_in: int, fan_out: int, depth: int) -> float:
    """As nanochat's, with smaller embeddings and MLPs and a head slightly off zero."""
    scales: Mapping[Role, float] = {"embedding": 0.8, "position": 0.8, "hidden": 0.4 / math.sqrt(fan_in), "head": 0.001}
    if role in ("input", "value"):
        return 1 / math.sqrt(fan_in)
    return scales[role] if role in scales else _nanochat(role, fan_in, fan_out, depth)


GLOROT_TRUNCATED = Initialization("glorot-truncated", _glorot, truncate_at=3.0)
GLOROT_CORRECTED = dataclasses.replace(GLOROT_TRUNCATED, name="glorot-corrected", corrected=True)
GPT2 = Initialization("gpt2", _gpt2)
NANOCHAT = Initialization("nanochat", _nanochat)
NANOCHAT_2026_07 = Initialization("nanochat-2026-07", _nanochat_2026_07, uniform=("input", "hidden", "value"))

INITIALIZATIONS: Mapping[str, Initialization] = {
    init.name: init for init in (GLOROT_TRUNCATED, GLOROT_CORRECTED, GPT2, NANOCHAT, NANOCHAT_2026_07)
}


def get_initialization(name: "str | Initialization") -> Initialization:
    """Look up an initialization by name; an `Initialization` passes through."""
    if isinstance(name, Initialization):
        return name
    return lookup("initialization", name, INITIALIZATIONS)
