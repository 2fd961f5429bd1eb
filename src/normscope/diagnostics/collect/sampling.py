"""Choose the steps whose tensors are measured: in long x-rays, not all."""

from dataclasses import dataclass, field

_ALWAYS = 20
"""The first steps are all measured: most faults show in them, and short x-rays miss nothing."""

_EVERY = 7
"""Of later steps one in so many is measured. A prime, so that what happens every second or fifth step is seen too."""

_MAX_PASSES = 16
"""Passes of the model that count as a step if no optimizer steps, as in an evaluation."""


@dataclass
class Sampling:
    """Which step it is, and whether its tensors are measured.

    The structure, counts, losses and learning rates are recorded in every step. Several optimizers that take turns make
    one step together.

    >>> sampling, measured = Sampling(), []
    >>> for step in range(35):
    ...     measured += [step] if sampling.is_measuring else []
    ...     sampling.end_step("AdamW")
    >>> measured == [*range(20), 21, 28]
    True
    """

    is_measuring: bool = True
    steps: int = 0
    measured: int = 0
    _passes: int = 0
    _by_optimizer: dict[object, int] = field(default_factory=dict)

    def begin_pass(self) -> None:
        """The model is about to run."""
        if self._passes >= _MAX_PASSES:
            self._next_step()
        self._passes += 1

    def end_step(self, optimizer: object) -> None:
        """An optimizer, given by a key, has stepped."""
        self._passes, made = 0, self._by_optimizer.get(optimizer, 0) + 1
        self._by_optimizer[optimizer] = made
        if made > max((n for key, n in self._by_optimizer.items() if key != optimizer), default=0):
            self._next_step()

    def _next_step(self) -> None:
        self.measured += self.is_measuring
        self.steps, self._passes = self.steps + 1, 0
        self.is_measuring = self.steps < _ALWAYS or self.steps % _EVERY == 0

    @property
    def notice(self) -> str:
        """Which steps were measured; "" if all."""
        if self.measured == self.steps:
            return ""
        which = f"the first {_ALWAYS}, then every {_EVERY}th"
        return f"tensors were measured in {self.measured} of {self.steps:,} steps: {which}; counts cover all"
