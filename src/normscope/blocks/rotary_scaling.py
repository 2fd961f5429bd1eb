"""Scaled rotary frequencies, which extend a model to contexts longer than in its pretraining."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from normscope.checks import check_positive_int, check_positive_number, short_repr
from normscope.errors import ConfigError

ScalingKind = Literal["linear", "llama3"]


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How the frequencies of a rotary embedding are divided.

    - "linear" divides all of them by the factor.
    - "llama3" divides those that turn fewer than `low_frequency_factor` times within the original context by the
      factor, leaves those that turn more than `high_frequency_factor` times, and interpolates between the two.

    Args:
        kind: "linear" or "llama3".
        factor: what frequencies are divided by.
        original_context, low_frequency_factor, high_frequency_factor: of "llama3" only.

    Papers:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"; Grattafiori
        et al. 2024, "The Llama 3 Herd of Models".

    >>> import torch
    >>> RotaryScaling(kind="linear", factor=4.0).scale(torch.tensor([1.0, 0.5]))
    tensor([0.2500, 0.1250])
    """

    kind: ScalingKind
    factor: float
    original_context: int = 8192
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(ScalingKind):
            kinds = ", ".join(get_args(ScalingKind))
            raise ConfigError(f"unknown rotary scaling kind={short_repr(self.kind)}; choose one of {kinds}")
        low, high = self.low_frequency_factor, self.high_frequency_factor
        check_positive_number(factor=self.factor, low_frequency_factor=low, high_frequency_factor=high)
        check_positive_int(original_context=self.original_context)
        if low >= high:
            raise ConfigError(f"low_frequency_factor={low} must be below high_frequency_factor={high}")

    def scale(self, speed: Tensor) -> Tensor:
        """Return the scaled frequencies, in radians per token."""
        slow = speed / self.factor
        if self.kind == "linear":
            return slow
        turns = speed * self.original_context / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * speed + (1 - kept) * slow
