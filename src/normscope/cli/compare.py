"""`normscope compare`: find out which model variant is better on your text."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from normscope.cli.lab import WorkerOptions
from normscope.cli.options import Float, Folder, Int, Str, given, option, read_arguments
from normscope.errors import ConfigError
from normscope.render.formatting import format_duration

Listed = Annotated[str | None, option("A,B,...")]
AUTO = "auto"
_NUMBERS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("depth", "width", "heads", "context"), (int, "comma-separated integers")),
    "lr": (float, "auto or comma-separated numbers"),
}
"""The type of the values of an option, and what to expect; other values are names."""


@dataclass(frozen=True)
class VariantOptions:
    """What to compare: comma-separated values."""

    norm: Listed = None
    """layer, rms, rms-plain, group, instance, batch, power, none, or a scope such as "... [d]"."""

    wiring: Listed = None
    """pre, post, sandwich, parallel, parallel-2, branch, single, none."""

    activation: Listed = None
    """relu2, relu, gelu, gelu-tanh, silu, swiglu, reglu, geglu, geglu-tanh."""

    init: Listed = None
    """glorot-truncated, glorot-corrected, gpt2, nanochat, nanochat-2026-07."""

    positions: Listed = None
    """learned, rotary, none."""

    depth: Listed = None
    """Number of blocks (default: 2)."""

    width: Listed = None
    """Embedding width (default: 48)."""

    heads: Listed = None
    """Number of attention heads (default: 4)."""

    context: Listed = None
    """Context length in bytes (default: 64)."""


@dataclass(frozen=True)
class Compare:
    """Train small GPT variants on your text, and report which is better, by how much, and with what confidence.

    Give comma-separated values to the options to compare; every combination is trained, each with its best learning
    rate. Example:

      normscope compare --norm rms,layer --wiring pre,post --data my.txt --minutes 10
    """

    preset: Str = "llama"
    """Preset that all variants are based on: gpt2, nanochat, nanochat-2026-07 or llama."""

    lr: Annotated[str, tyro.conf.arg(metavar="auto|X,...")] = AUTO
    """Learning rates to try; auto tries 0.001, 0.003, 0.01 and 0.03, then one more near or beyond the best."""

    minutes: Float = 10.0
    """Approximate time budget in minutes."""

    seeds: Int = 5
    """Number of seeds per variant, at least 2."""

    out: Folder = Path("comparison")
    """Output folder. Run the same command again to continue an interrupted comparison."""

    variants: VariantOptions = field(default_factory=VariantOptions)
    running: WorkerOptions = field(default_factory=WorkerOptions)


def main(arguments: Sequence[str]) -> None:
    start = time.monotonic()
    command = read_arguments(Compare, "compare", arguments)
    from normscope.lab.compare.compare import compare

    choices = {name: _values(name, text) for name, text in given(command.variants).items()}
    result = compare(**{**given(command), **choices, "lr": AUTO if command.lr == AUTO else _values("lr", command.lr)})
    print(result)
    took = f"took {format_duration(time.monotonic() - start)} of {format_duration(60 * command.minutes)}"
    print(f"wrote {result.report}; {took}")


def _values(name: str, text: str) -> list[Any]:
    kind, expected = _NUMBERS.get(name, (str, ""))
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values:
        raise ConfigError(f"a value is required for --{name}")
    try:
        return [kind(value) for value in values]
    except ValueError:
        raise ConfigError(f"invalid value {text!r} for --{name}: expected {expected}") from None
