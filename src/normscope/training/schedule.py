"""Learning-rate schedule: warmup, plateau, decay."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from normscope.checks import check_positive_int, is_number
from normscope.errors import ConfigError

ScheduleName = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True)
class LRSchedule:
    """The factor that multiplies every peak learning rate, step by step.

    Args:
        steps: Number of steps.
        schedule: Shape of the decay: linear, cosine, or constant (no decay).
        warmup: Fraction of the steps spent on linear warmup.
        decay: Fraction of the steps spent on the decay; 1 leaves no plateau.
        final_lr: Final learning rate, as a fraction of the peak.

    >>> schedule = LRSchedule(10, warmup=0.2, decay=0.5)
    >>> [round(schedule.lr_scale(step), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """

    steps: int
    schedule: ScheduleName = "linear"
    warmup: float = 0.0
    decay: float = 0.5
    final_lr: float = 0.0

    def __post_init__(self) -> None:
        check_positive_int(steps=self.steps)
        if self.schedule not in get_args(ScheduleName):
            raise ConfigError(f"schedule={self.schedule!r}: choose one of {', '.join(get_args(ScheduleName))}")
        for name in ("warmup", "decay", "final_lr"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value <= 1):
                raise ConfigError(f"{name}={value!r} must be a fraction between 0 and 1")
        if self.schedule != "constant" and self.warmup + self.decay > 1:
            raise ConfigError(f"warmup={self.warmup} plus decay={self.decay} must be at most 1")

    def lr_scale(self, step: int) -> float:
        """The factor for a step, counted from 0."""
        warmup_steps = self.warmup * self.steps
        if step + 1 < warmup_steps:
            return (step + 1) / warmup_steps
        decay_steps = self.decay * self.steps
        if self.schedule == "constant" or self.steps - step >= decay_steps:
            return 1.0
        left = max(0.0, (self.steps - step) / decay_steps)  # from 1 at the start of the decay towards 0 at the end
        if self.schedule == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return self.final_lr + (1 - self.final_lr) * left
