"""What an architecture of another tool can represent, as requirements on the fields of a `GPTConfig`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from normscope.blocks.norm.norm_spec import NormSpec, as_norm
from normscope.checks import short_repr
from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig

_SIZES = ("vocab_size", "context", "width", "depth", "heads", "hidden")
_TRAINING_ONLY = ("dropout", "init", "allow_future_leak")

Allowed = Callable[[Any], bool]


@dataclass(frozen=True)
class Requirements:
    """The configs that an architecture can represent. A field that is not listed must have its default.

    Args:
        architecture: its name in messages, such as "llama.cpp's llama".
        allowed: for each field, which values are possible.
    """

    architecture: str
    allowed: Mapping[str, Allowed]

    def mismatches(self, config: GPTConfig) -> list[str]:
        """The fields that the architecture cannot represent, as `name=value`."""
        heads, kv_heads, head_dim = config.head_sizes
        same = {"kv_heads": kv_heads == heads, "head_dim": head_dim * heads == config.width}
        found = []
        for field in fields(GPTConfig):
            value = None if same.get(field.name) else getattr(config, field.name)
            allowed = self.allowed.get(field.name, is_one_of(field.default))
            if field.name not in (*_SIZES, *_TRAINING_ONLY) and not allowed(value):
                found.append(f"{field.name}={format_setting(value)}")
        return found


def check_representable(
    config: GPTConfig, tool: str, choices: Sequence[Requirements], preset: str = "llama"
) -> Requirements:
    """Return the first architecture that can represent a config; raise a ConfigError that names the fields.

    Args:
        config: the config.
        tool: name of the tool.
        choices: its architectures.
        preset: a preset that it can represent.
    """
    misses, closest = min(((one.mismatches(config), one) for one in choices), key=lambda pair: len(pair[0]))
    if misses:
        raise ConfigError(
            f"{tool} cannot run this model: no architecture of it has {', '.join(misses)} "
            f"(closest: {closest.architecture})\n"
            f"fix: export a model of `normscope train --preset {preset}`, or use --to onnx"
        )
    return closest


def is_one_of(*values: Any) -> Allowed:
    return lambda value: value in values


def anything(value: Any) -> bool:
    return True


def is_norm(statistic: str, bias: bool | None = None, eps: float | None = None) -> Allowed:
    """Whether a norm is over the width of each token, with a gain.

    Args:
        statistic: "rms" or "standardize".
        bias: whether it has a bias; None for either.
        eps: the only possible eps; None for any number.
    """

    def allowed(value: NormSpec | str | None) -> bool:
        norm = as_norm(value)
        if norm is None or (norm.eps is None and eps is not None):
            return False
        return (norm.statistic, norm.scope, norm.state, norm.affine) == (statistic, "... [d]", None, "d") and (
            (bias is None or norm.bias is bias) and (eps is None or norm.eps == eps)
        )

    return allowed


def format_setting(value: Any) -> str:
    """Format the value of a field of a config for a message."""
    return f"{value.statistic} over {value.scope!r}" if isinstance(value, NormSpec) else short_repr(value)
