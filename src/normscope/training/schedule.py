"""How fast to learn at each step: a warm-up, a plateau, a decay."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from normscope.checks import check_positive_int, is_number
from normscope.errors import ConfigError

Shape = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True)
class Schedule:
    """What every learning rate is multiplied with, from step 0 to the last.

    Args:
        steps: how many there are.
        shape: how the rate falls at the end: in a line, as a cosine, or not at all.
        warmup: the share of the steps in which it rises from nothing.
        decay: the share in which it falls; 1 leaves no plateau.
        final: where it ends, as a share of the peak.

    >>> schedule = Schedule(10, warmup=0.2, decay=0.5)
    >>> [round(schedule.at(step), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """

    steps: int
    shape: Shape = "linear"
    warmup: float = 0.0
    decay: float = 0.5
    final: float = 0.0

    def __post_init__(self) -> None:
        check_positive_int(steps=self.steps)
        if self.shape not in get_args(Shape):
            raise ConfigError(f"schedule={self.shape!r}: choose one of {', '.join(get_args(Shape))}")
        for name in ("warmup", "decay", "final"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value <= 1):
                raise ConfigError(f"{name}={value!r} is a share of the whole, so it must be between 0 and 1")
        if self.shape != "constant" and self.warmup + self.decay > 1:
            raise ConfigError(f"warmup={self.warmup} and decay={self.decay} together are more than all the steps")

    def at(self, step: int) -> float:
        """The factor of the step with this number, the first being 0."""
        warming = self.warmup * self.steps
        if step + 1 < warming:
            return (step + 1) / warming
        falling = self.decay * self.steps
        if self.shape == "constant" or self.steps - step >= falling:
            return 1.0
        left = max(0.0, (self.steps - step) / falling)  # 1 where the fall begins, towards 0 at the end
        if self.shape == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return self.final + (1 - self.final) * left
