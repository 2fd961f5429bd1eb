"""An explanation as plain data: words, code and numbers, which a terminal or a page can show as it likes."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NumberArray = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64] | NDArray[np.bool_]


@dataclass(frozen=True)
class ExplanationValue:
    """Something with a name: an array of numbers, or words for what is none.

    Args:
        name: what the code calls it.
        content: the numbers, whole; or a text, such as "None".
        axes: the names of the dimensions, for instance ("n", "c", "h", "w"), where they have some.
        columns: what the columns of a table are called, if it is one.
    """

    name: str
    content: NumberArray | str
    axes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return () if isinstance(self.content, str) else self.content.shape


@dataclass(frozen=True)
class ReferenceCheck:
    """How far a step's numbers are from those of somebody else who computed them.

    >>> ReferenceCheck("torch.nn.LayerNorm", difference=6e-8, tolerance=1e-5).within_tolerance
    True
    """

    reference: str
    difference: float
    tolerance: float

    @property
    def within_tolerance(self) -> bool:
        return math.isfinite(self.difference) and self.difference <= self.tolerance


@dataclass(frozen=True)
class ExplanationStep:
    """One step: what is done and why, the code that did it, what came out, and who agrees."""

    title: str
    words: str
    code: str
    value: ExplanationValue
    checks: tuple[ReferenceCheck, ...]


@dataclass(frozen=True)
class Explanation:
    """A layer, worked through step by step.

    Args:
        topic: its name on the command line.
        title: the layer, and its scope where it has one.
        summary: what it does, in a paragraph.
        given: what the steps start from.
        steps: the steps, in order; the last one, or the one that is called `result`, is what the layer gives.
        digits: how many digits after the point are worth showing.
    """

    topic: str
    title: str
    summary: str
    given: tuple[ExplanationValue, ...]
    steps: tuple[ExplanationStep, ...]
    digits: int = 4

    def step(self, title: str) -> ExplanationStep:
        """The step of this title."""
        for step in self.steps:
            if step.title == title:
                return step
        raise KeyError(f"{self.topic} has no step {title!r}; it has {', '.join(step.title for step in self.steps)}")
