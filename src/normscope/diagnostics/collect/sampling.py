"""Choose the steps whose tensors are measured: in long x-rays, not all."""

from dataclasses import dataclass

_ALWAYS = 20
"""The first steps are all measured: most faults show in them, and short x-rays miss nothing."""

_EVERY = 7
"""Of later steps one in so many is measured. A prime, so that optimizers that take turns all have their turn."""

_MAX_PASSES = 16
"""Passes of the model that count as a step if no optimizer steps, as in an evaluation."""


@dataclass
class Sampling:
    """Which step it is, and whether its tensors are measured.

    The structure, counts, losses and learning rates are recorded in every step.

    >>> sampling, measured = Sampling(), []
    >>> for step in range(35):
    ...     measured += [step] if sampling.is_measuring else []
    ...     sampling.end_step()
    >>> measured == [*range(20), 21, 28]
    True
    """

    is_measuring: bool = True
    steps: int = 0
    measured: int = 0
    _passes: int = 0

    def begin_pass(self) -> None:
        """The model is about to run."""
        if self._passes >= _MAX_PASSES:
            self.end_step()
        self._passes += 1

    def end_step(self) -> None:
        """An optimizer has stepped."""
        self.measured += self.is_measuring
        self.steps, self._passes = self.steps + 1, 0
        self.is_measuring = self.steps < _ALWAYS or self.steps % _EVERY == 0

    @property
    def notice(self) -> str:
        """Which steps were measured; "" if all."""
        if self.measured == self.steps:
            return ""
        which = f"the first {_ALWAYS}, then every {_EVERY}th"
        return f"tensors were measured in {self.measured} of {self.steps:,} steps: {which}; counts and losses cover all"
