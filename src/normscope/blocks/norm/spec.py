"""`NormSpec`: a norm as a value, for a model's config to hold and to build wherever the model needs one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from normscope.blocks.norm import checks
from normscope.blocks.norm.checks import NormState
from normscope.blocks.norm.norm import Norm
from normscope.checks import check_flags, short_repr
from normscope.errors import ConfigError
from normscope.ops.statistic import Statistic, StatisticName
from normscope.scope import Axes, Scope


@dataclass(frozen=True)
class NormSpec:
    """A choice of norm: the arguments of `Norm`, without the sizes that the model knows.

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
        # As pairs, in the scope's order, so that a spec cannot be changed behind a config's back.
        sizes = checks.parse_sizes(self.sizes)
        scope.check_sizes(**sizes)
        object.__setattr__(self, "sizes", tuple(sizes.items()))
        object.__setattr__(self, "scope", scope.text)
        checks.check_settings(Statistic.named(self.statistic), self.state, self.momentum, self.warmup, self.eps)
        check_flags(bias=self.bias, sync=self.sync)
        if self.affine is not None:
            everything = {axis.name: 1 for axis in scope.axes}
            Axes.parse(self.affine).shape(scope, everything)  # refuses axes that the scope does not have

    def build(self, shape: Sequence[int | None], device: str | None = None) -> Norm:
        """The layer for tensors of this shape; None stands for what varies from batch to batch."""
        scope = Scope.parse(self.scope)
        given = dict(self.sizes)
        known = scope.sizes(shape, **given)
        # Only what owns something is pinned: a gain over c must not tie the layer to one image size.
        owners = set(given) | set(() if self.affine is None else Axes.parse(self.affine).names)
        if self.state is not None:
            owners |= {axis.name for axis in scope.axes if not axis.bracketed}
        sizes: dict[str, Any] = {name: size for name, size in known.items() if name in owners}
        return Norm(
            scope,
            statistic=self.statistic,
            state=self.state,
            affine=self.affine,
            bias=self.bias,
            eps=self.eps,
            momentum=self.momentum,
            warmup=self.warmup,
            sync=self.sync,
            device=device,
            **sizes,
        )

    def brackets(self, dimension: int, rank: int) -> bool:
        """Whether this norm shares statistics along a dimension of tensors of this rank."""
        return Scope.parse(self.scope).brackets(dimension, rank)

    def mixes_along(self, dimension: int, rank: int) -> bool:
        """Whether in training the result at one place depends on the input at others along a dimension.

        PowerNorm's does not, whatever it brackets: it divides by what it remembers of earlier batches.
        """
        by_memory = self.state == "power" and self.warmup == 0
        return self.brackets(dimension, rank) and not by_memory


TEXT_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("... [d]"),
    "rms": NormSpec("... [d]", statistic="rms", bias=False),
    "rms-plain": NormSpec("... [d]", statistic="rms", affine=None, eps=None),
    "group": NormSpec("b s (g [d])", affine="(g d)", sizes={"g": 4}),
    "instance": NormSpec("b [s] d"),
    "batch": NormSpec("[b s] d", state="running"),
    "power": NormSpec("[b s] d", statistic="rms", state="power"),
}
"""The norms by name over text, b s d. In training `instance` and `batch` share statistics between tokens."""

IMAGE_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("n [c h w]", affine="c"),
    "rms": NormSpec("n [c h w]", statistic="rms", affine="c", bias=False),
    "group": NormSpec("n (g [c]) [h w]", affine="(g c)", sizes={"g": 4}),
    "instance": NormSpec("n c [h w]", affine="c"),
    "batch": NormSpec("[n] c [h w]", state="running", affine="c"),
    "power": NormSpec("[n] c [h w]", statistic="rms", state="power", affine="c"),
}
"""The norms by name over images, n c h w."""


def as_norm(value: "NormSpec | str | None", norms: Mapping[str, NormSpec] = TEXT_NORMS) -> NormSpec | None:
    """A norm from its name, from a scope, or as it is; "none" is None, no norm at all.

    >>> as_norm("rms").statistic
    'rms'
    >>> as_norm("b s [d]")  # a scope by itself is a norm without parameters
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
    """The absence of a norm, with a norm's arguments."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return input


def build_norm(spec: NormSpec | None, shape: Sequence[int | None]) -> nn.Module:
    """The norm for tensors of this shape, or none."""
    return NoNorm() if spec is None else spec.build(shape)
