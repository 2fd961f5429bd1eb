"""What a run may give: numbers, truth values, texts, and lists of these; all finite, so that JSON can hold them."""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.errors import NonFiniteError


def to_plain_metrics(metrics: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """The figures as plain Python values. What is not finite is refused by name: a measure has to say what it means.

    >>> to_plain_metrics({"loss": 2, "curve": [(1, 0.5)]}, "demo")
    {'loss': 2, 'curve': [[1, 0.5]]}
    """
    return {str(name): _plain(value, f"{name} of {whose}") for name, value in metrics.items()}


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise NonFiniteError(f"the figure {where} is {float(value)}")
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one, where) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one, where) for one in value]
    raise NonFiniteError(f"the figure {where} is a {type(value).__name__}, not a number, a text or a list of these")
