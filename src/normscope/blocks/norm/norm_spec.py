"""`NormSpec`: the configuration of a norm, from which a model builds its norm layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from normscope.blocks.norm import checks
from normscope.blocks.norm.base import Norm
from normscope.blocks.norm.checks import NormState
from normscope.checks import check_flags, short_repr
from normscope.errors import ConfigError, FutureLeakError
from normscope.ops.norm.statistic import Statistic, StatisticName
from normscope.scope import Axes, Scope

_OF_THE_SCOPE = ("scope", "sizes")


@dataclass(frozen=True)
class NormSpec:
    """The configuration of a norm: the arguments of `Norm`, without the sizes that the model determines.

    >>> spec = NormSpec("b s (g [d])", affine="(g d)", sizes={"g": 4})
    >>> spec.build((None, None, 32))
    Norm('b s (g [d])', affine='(g d)', eps=1e-05, g=4, d=8)
    """

    scope: str = "... [d]"
    statistic: StatisticName = "standardize"
    state: NormState | None = None
    affine: str | None = "d"
    bias: bool = True
    eps: float | None = 1e-5
    momentum: float | None = 0.1
    warmup: int = 0
    sync: bool = False
    sizes: Mapping[str, int] | tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        scope = Scope.parse(self.scope)
        # Stored as a tuple of pairs, so that the spec is immutable and hashable.
        try:
            sizes = dict(self.sizes)
        except (TypeError, ValueError):
            raise ConfigError(f"sizes={self.sizes!r} must be a mapping such as {{'g': 4}}") from None
        scope.check_sizes(**sizes)
        object.__setattr__(self, "sizes", tuple(sizes.items()))
        object.__setattr__(self, "scope", scope.text)
        checks.check_settings(Statistic.named(self.statistic), self.state, self.momentum, self.warmup, self.eps)
        check_flags(bias=self.bias, sync=self.sync)
        if self.affine is not None:
            everything = {axis.name: 1 for axis in scope.axes}
            Axes.parse(self.affine).shape(scope, everything)  # raises if the scope does not have these axes

    def build(self, shape: Sequence[int | None], device: str | None = None) -> Norm:
        """Build the layer for tensors of this shape, in which None marks sizes that vary between batches."""
        scope = Scope.parse(self.scope)
        given = dict(self.sizes)
        known = scope.sizes(shape, **given)
        # Fix only the sizes of axes with parameters or buffers: a weight over c must not fix the image size.
        fixed = set(given) | set(() if self.affine is None else Axes.parse(self.affine).names)
        if self.state is not None:
            fixed |= {axis.name for axis in scope.axes if not axis.bracketed}
        sizes: dict[str, Any] = {name: size for name, size in known.items() if name in fixed}
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _OF_THE_SCOPE}
        return Norm(scope, device=device, **settings, **sizes)

    def brackets(self, dimension: int, rank: int) -> bool:
        """Return whether this norm shares statistics along a dimension of tensors of this rank."""
        return Scope.parse(self.scope).brackets(dimension, rank)

    def mixes_along(self, dimension: int, rank: int) -> bool:
        """Return whether, in training, the output at one index of a dimension depends on the input at other indices.

        PowerNorm never mixes: it normalizes with the running statistics of earlier batches.
        """
        uses_running_stats = self.state == "power" and self.warmup == 0
        return self.brackets(dimension, rank) and not uses_running_stats

    def check_no_future_leak(self, name: str, rank: int) -> None:
        """Reject this norm in a causal model, over (b, s, ...), if it shares statistics along s in training.

        Running statistics in eval mode are safe. So is PowerNorm, which uses running statistics in training too; batch
        norm in training is not.
        """
        if self.mixes_along(1, rank):
            raise FutureLeakError(
                f"{name}={self.scope!r} brackets the token axis: in training, every token would be normalized with "
                f"statistics of later tokens, which leaks the tokens that the model has to predict. Use a scope that "
                f"does not bracket it, such as '... [d]'; or, to study the leak, pass allow_future_leak=True"
            )


TEXT_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("... [d]"),
    "rms": NormSpec("... [d]", statistic="rms", bias=False),
    "rms-plain": NormSpec("... [d]", statistic="rms", affine=None, eps=None),
    "group": NormSpec("b s (g [d])", affine="(g d)", sizes={"g": 4}),
    "instance": NormSpec("b [s] d"),
    "batch": NormSpec("[b s] d", state="running"),
    "power": NormSpec("[b s] d", statistic="rms", state="power"),
}
"""Named norms for text, with axes b s d. In training, `instance` and `batch` share statistics between tokens."""

IMAGE_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("n [c h w]", affine="c"),
    "rms": NormSpec("n [c h w]", statistic="rms", affine="c", bias=False),
    "group": NormSpec("n (g [c]) [h w]", affine="(g c)", sizes={"g": 4}),
    "instance": NormSpec("n c [h w]", affine="c"),
    "batch": NormSpec("[n] c [h w]", state="running", affine="c"),
    "power": NormSpec("[n] c [h w]", statistic="rms", state="power", affine="c"),
}
"""Named norms for images, with axes n c h w."""


def as_norm(value: "NormSpec | str | None", norms: Mapping[str, NormSpec] = TEXT_NORMS) -> NormSpec | None:
    """Convert a name, a scope or a `NormSpec` to a `NormSpec`; None and "none" give None (no norm).

    >>> as_norm("rms").statistic
    'rms'
    >>> as_norm("b s [d]")  # a scope alone is a norm without parameters
    NormSpec(scope='b s [d]', statistic='standardize', state=None, affine=None, bias=True, eps=1e-05, momentum=0.1, \
warmup=0, sync=False, sizes=())
    """
    if value is None or (isinstance(value, str) and value == "none"):
        return None
    if isinstance(value, NormSpec):
        return value
    if isinstance(value, str) and value in norms:
        return norms[value]
    if isinstance(value, str) and "[" in value:
        return NormSpec(value, affine=None)
    raise ConfigError(
        f"there is no norm {short_repr(value)}; give one of {', '.join(norms)} or none, a scope such as '... [d]', "
        "or a NormSpec"
    )


class NoNorm(nn.Module):
    """The identity, with the signature of a norm."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return input


def build_norm(spec: NormSpec | None, shape: Sequence[int | None]) -> nn.Module:
    """Build the norm for tensors of this shape; the identity for None."""
    return NoNorm() if spec is None else spec.build(shape)
