"""An explanation as plain data: text, code and numbers."""

import html
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NumberArray = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64] | NDArray[np.bool_]


@dataclass(frozen=True)
class ExplanationValue:
    """A named value: an array, or text for anything else.

    Args:
        name: its name in the code.
        content: the array; or text, such as "None".
        axes: names of the dimensions, for example ("n", "c", "h", "w"), if any.
        columns: column titles, if it is a table.
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
    """The largest difference between a step's result and that of a reference implementation.

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
    """One step: description, code, result, and comparisons with references."""

    title: str
    description: str
    code: str
    value: ExplanationValue
    checks: tuple[ReferenceCheck, ...]


@dataclass(frozen=True)
class Explanation:
    """A layer, explained step by step.

    Args:
        topic: name of the topic.
        title: the layer, and its scope if it has one.
        description: what the layer does.
        given: the inputs of the steps.
        steps: the steps, in order; the output of the layer is the step `result`, or the last one.
        digits: decimals to show.
    """

    topic: str
    title: str
    description: str
    given: tuple[ExplanationValue, ...]
    steps: tuple[ExplanationStep, ...]
    digits: int = 4

    def _repr_html_(self) -> str:
        """Show the explanation in a notebook."""
        from normscope.learning.terminal import render  # which imports this file

        return f"<pre>{html.escape(render(self))}</pre>"

    def step(self, title: str) -> ExplanationStep:
        """Return the step with this title."""
        for step in self.steps:
            if step.title == title:
                return step
        raise KeyError(f"{self.topic} has no step {title!r}; it has {', '.join(step.title for step in self.steps)}")
