"""`NormSpec`: a norm as a value, for a model's config to hold and to build wherever the model needs one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normscope.blocks.norm.engine import Norm, State
from normscope.errors import ConfigError
from normscope.kernels.normalize import Statistic
from normscope.scope import Axes, Scope


@dataclass(frozen=True)
class NormSpec:
    """A choice of norm: the arguments of `Norm`, without the sizes that the model knows.

    >>> spec = NormSpec("b s (g [d])", affine="(g d)", sizes={"g": 4})
    >>> spec.build((None, None, 32))
    Norm('b s (g [d])', affine='(g d)', eps=1e-05, g=4, d=8)
    """

    scope: str = "... [d]"
    statistic: Statistic = "standardise"
    state: State | None = None
    affine: str | None = "d"
    bias: bool = True
    eps: float | None = 1e-5
    momentum: float | None = 0.1
    sync: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        Scope.parse(self.scope).check_sizes(**self.sizes)

    def build(self, shape: Sequence[int | None]) -> Norm:
        """The layer for tensors of this shape; None stands for what varies from batch to batch."""
        scope = Scope.parse(self.scope)
        known = scope.sizes(shape, **self.sizes)
        # Only what owns something is pinned: a gain over c must not tie the layer to one image size.
        owners = set(self.sizes) | set(() if self.affine is None else Axes.parse(self.affine).names)
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
            sync=self.sync,
            **sizes,
        )

    def brackets(self, dimension: int, rank: int) -> bool:
        """Whether this norm shares statistics along a dimension of tensors of this rank."""
        scope = Scope.parse(self.scope)
        scope.sizes((None,) * rank, **self.sizes)  # refuses a scope that does not fit the rank
        return scope.brackets(dimension, rank)


TEXT_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("... [d]"),
    "rms": NormSpec("... [d]", statistic="rms", bias=False),
    "rms-plain": NormSpec("... [d]", statistic="rms", affine=None, eps=None),
    "group": NormSpec("b s (g [d])", affine="(g d)", sizes={"g": 4}),
    "instance": NormSpec("b [s] d"),
    "batch": NormSpec("[b s] d", state="running"),
    "power": NormSpec("[b s] d", statistic="rms", state="power"),
}
"""The norms by name over text, b s d. The last three share statistics between tokens."""

IMAGE_NORMS: Mapping[str, NormSpec] = {
    "layer": NormSpec("n [c h w]", affine="c"),
    "rms": NormSpec("n [c h w]", statistic="rms", affine="c", bias=False),
    "group": NormSpec("n (g [c]) [h w]", affine="(g c)", sizes={"g": 4}),
    "instance": NormSpec("n c [h w]", affine="c"),
    "batch": NormSpec("[n] c [h w]", state="running", affine="c"),
    "power": NormSpec("[n] c [h w]", statistic="rms", state="power", affine="c"),
}
"""The norms by name over images, n c h w."""


def named_norm(name: str, norms: Mapping[str, NormSpec] = TEXT_NORMS) -> NormSpec | None:
    """The norm of this name; "none" is None, no norm at all.

    >>> named_norm("rms").statistic
    'rms'
    """
    if name == "none":
        return None
    if name not in norms:
        raise ConfigError(f"there is no norm {name!r}; choose one of {', '.join(norms)} or none, or give a NormSpec")
    return norms[name]
