"""What the tests of worked numbers share."""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.learning.catalog import explain
from normscope.learning.explanation import Explanation


@cache
def explained(topic: str) -> Explanation:
    """The explanation of a topic with its own example, for tests that only look at it."""
    return explain(topic)


def numbers(explanation: Explanation, title: str) -> NDArray[Any]:
    """What a step gave."""
    content = explanation.step(title).value.content
    assert not isinstance(content, str), content
    return np.asarray(content)


def near(found: NDArray[Any], expected: Any, digits: int) -> None:
    """Equal to so many digits after the point, as a note gives them."""
    np.testing.assert_allclose(found, np.asarray(expected), rtol=0, atol=0.5001 * 10.0**-digits)


def wrong(explanation: Explanation) -> list[tuple[str, str, float]]:
    """The checks that do not hold."""
    return [
        (step.title, check.reference, check.difference)
        for step in explanation.steps
        for check in step.checks
        if not check.within_tolerance
    ]


def tensor_file(folder: Any, array: Any, name: str = "x.npy") -> str:
    path = folder / name
    np.save(path, array.numpy() if isinstance(array, torch.Tensor) else array)
    return str(path)
