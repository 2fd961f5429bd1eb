"""Recognize numbers that went to Python or NumPy, in tensors that are made of them later."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from normscope.diagnostics.collect.tensors import sample_elements
from normscope.diagnostics.watchers.graph.flow import NOTHING, Flow

_MAX_VALUES = 1 << 13
"""Numbers that are remembered."""

_MAX_NUMBERS = 1024
"""Numbers of one array or list that are remembered; of a larger one, a sample."""

_SAMPLE = 16
_SAME = 0.5
"""Of a tensor of unknown origin, this many numbers are looked up, and this part must be known: other numbers of a batch
of data may be equal to some by chance."""


class NumbersOutsideTorch:
    """Where numbers in Python lists and NumPy arrays came from."""

    def __init__(self) -> None:
        self._by_value: dict[float, Flow] = {}
        self._by_shape: dict[tuple[int, ...], Flow] = {}

    def put(self, value: Any, flow: Flow) -> None:
        """Remember the numbers of a Python or NumPy value."""
        for number in _numbers_in(value):
            self._by_value.pop(number, None)
            self._by_value[number] = flow
        while len(self._by_value) > _MAX_VALUES:
            del self._by_value[next(iter(self._by_value))]

    def put_shape(self, shape: tuple[int, ...], flow: Flow) -> None:
        """Remember the shape of an array, for a tensor of other numbers that is made of it."""
        self._by_shape[shape] = flow

    def of_number(self, number: float) -> Flow:
        return self._by_value.get(number, NOTHING) if self._by_value else NOTHING

    def of(self, tensor: Tensor) -> Flow:
        """What a tensor was computed from, if many of its numbers are known, or its shape."""
        if not self._by_value or not tensor.numel():
            return NOTHING
        numbers = [x for x in sample_elements(tensor, _SAMPLE).tolist() if math.isfinite(x) and x != round(x, 2)]
        known = [flow for x in numbers if (flow := self._by_value.get(x)) is not None]
        if not known or len(known) < _SAME * len(numbers):
            return self._by_shape.get(tuple(tensor.shape), NOTHING)
        values = cuts = 0
        for flow in known:
            values, cuts = values | flow.values, cuts | flow.cuts
        return Flow(values, 0, cuts, False)

    def clear(self) -> None:
        self._by_value.clear()
        self._by_shape.clear()


def _numbers_in(value: Any) -> list[float]:
    """Numbers that identify a value, without round ones, which other values have too."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        value = (flat if flat.size <= _MAX_NUMBERS else flat[:: -(-flat.size // _SAMPLE)]).tolist()
    found: list[float] = []
    waiting = [value]
    while waiting and len(found) < _MAX_NUMBERS:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item[:_MAX_NUMBERS]
        elif isinstance(item, float) and math.isfinite(item) and item != round(item, 2):
            found.append(item)
    return found
