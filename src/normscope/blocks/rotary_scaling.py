"""Scaled rotary frequencies, which extend a model to contexts longer than in its pretraining."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from normscope.checks import check_positive_int, check_positive_number, short_repr
from normscope.errors import ConfigError

ScalingKind = Literal["linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How the frequencies of a rotary embedding are divided.

    - "linear" divides all of them by the factor.
    - "llama3" divides those that turn fewer than `low_frequency_factor` times within the original context by the
      factor, leaves those that turn more than `high_frequency_factor` times, and interpolates between the two.
    - "yarn" does the same, with an interpolation that is linear in the index of the frequency, between whole indices.
    - "longrope" divides each by its own number.

    Args:
        kind: "linear", "llama3", "yarn" or "longrope".
        factor: what frequencies are divided by.
        original_context, low_frequency_factor, high_frequency_factor: of "llama3" and "yarn" only.
        attention_factor: what rotated queries and keys are multiplied by.
        divisors: of "longrope" only: what each frequency is divided by besides.

    Papers:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"; Grattafiori
        et al. 2024, "The Llama 3 Herd of Models"; Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large
        Language Models"; Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens".

    >>> import torch
    >>> RotaryScaling(kind="linear", factor=4.0).scale(torch.tensor([1.0, 0.5]), base=4.0)
    tensor([0.2500, 0.1250])
    """

    kind: ScalingKind
    factor: float
    original_context: int = 8192
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(ScalingKind):
            kinds = ", ".join(get_args(ScalingKind))
            raise ConfigError(f"unknown rotary scaling kind={short_repr(self.kind)}; choose one of {kinds}")
        low, high = self.low_frequency_factor, self.high_frequency_factor
        check_positive_number(
            factor=self.factor,
            low_frequency_factor=low,
            high_frequency_factor=high,
            attention_factor=self.attention_factor,
        )
        check_positive_int(original_context=self.original_context)
        if not isinstance(self.divisors, tuple):
            raise ConfigError(f"divisors={short_repr(self.divisors)} must be a tuple of numbers")
        for divisor in self.divisors:
            check_positive_number(divisors=divisor)
        if low >= high:
            raise ConfigError(f"low_frequency_factor={low} must be below high_frequency_factor={high}")

    def scale(self, speed: Tensor, base: float) -> Tensor:
        """Return the scaled frequencies, in radians per token, of a rotary embedding of this base."""
        slow = speed / self.factor
        if self.kind == "linear":
            return slow
        if self.kind == "longrope":
            if len(self.divisors) != len(speed):
                raise ConfigError(
                    f"rotary scaling has {len(self.divisors)} divisors for {len(speed)} frequencies\n"
                    f"fix: use one divisor for each pair of rotated features"
                )
            return slow / torch.tensor(self.divisors, dtype=speed.dtype, device=speed.device)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if self.kind == "llama3":
            turns = speed * self.original_context / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
        else:
            first = max(math.floor(self._index(high, len(speed), base)), 0)
            last = min(math.ceil(self._index(low, len(speed), base)), 2 * len(speed) - 1)
            index = torch.arange(len(speed), dtype=speed.dtype, device=speed.device)
            kept = 1 - ((index - first) / (last - first or 0.001)).clamp(0, 1)
        return kept * speed + (1 - kept) * slow

    def _index(self, turns: float, count: int, base: float) -> float:
        """The index, of `count`, of the frequency that turns this often within the original context."""
        if base <= 1:
            raise ConfigError(
                f"rotary scaling of kind='yarn' needs a base above 1, but got {base}\nfix: use another kind"
            )
        return count * math.log(self.original_context / (2 * math.pi * turns)) / math.log(base)
