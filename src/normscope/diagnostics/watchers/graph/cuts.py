"""Places where autograd loses parameters: `detach()`, `round()`, `torch.no_grad()`, a copy by NumPy."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.diagnostics.collect.source_lines import source_line
from normscope.tracing.tracer import FunctionCall

ZERO_SLOPE = frozenset({"round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside", "floor_divide"})
ZERO_SLOPE |= {"normal", "bernoulli", "poisson"}
"""Functions of floating-point numbers whose gradient is zero everywhere, also those that draw samples."""

_FROM_VALUES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor", "from_numpy"})

_MAX_CUTS = 256
"""Different cuts that are distinguished; most are harmless, such as metrics."""

_MAX_LINES = 512
"""Cuts whose line of code is looked up, which takes as long as a small function."""


@dataclass(slots=True)
class Cut:
    """A place where parameters were lost, with its bit in sets of cuts.

    Args:
        bit: 1 << its number.
        reason: such as "detach".
        function: its function.
        module: the module that called it.
        line: the line of code.
        lost: the parameters, as a set.
    """

    bit: int
    reason: str
    function: str
    module: str
    line: str | None
    lost: int = 0


class Cuts:
    """All cuts; a set of them is a number with one bit per cut."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, str, str, str | None], Cut] = {}
        self._lines: dict[tuple[str, str], str | None] = {}
        self._looked_up = 0

    def __iter__(self) -> Iterator[Cut]:
        return iter(self._cuts.values())

    def add(self, reason: str, function: str, lost: int, call: FunctionCall | None = None) -> int:
        """Add a cut that loses these parameters; return it as a set, which is empty if there are too many."""
        module = call.frames[-1].accumulator.name if call is not None and call.frames else ""
        if self._looked_up < _MAX_LINES:
            self._looked_up += 1
            self._lines[function, module] = line = source_line()
        else:
            line = self._lines.get((function, module))
        key = reason, function, module, line
        if key not in self._cuts:
            if len(self._cuts) >= _MAX_CUTS:
                return 0
            self._cuts[key] = Cut(1 << len(self._cuts), *key)
        cut = self._cuts[key]
        cut.lost |= lost
        return cut.bit

    def add_call(self, call: FunctionCall, output: Tensor, lost: int) -> int:
        """Add the call of a function that lost parameters, if it did; return it as a set."""
        if not lost:
            return 0
        if call.name in ("detach", "data"):
            reason = call.name
        elif call.name in ZERO_SLOPE:
            reason = "zero slope"
        elif call.name in _FROM_VALUES:
            reason = "copy"
        elif not output.is_floating_point() and not output.is_complex():
            reason = "integers"
        elif torch.is_grad_enabled():
            reason = "in place" if call.name == "setitem" or call.function.__name__.endswith("_") else "no gradient"
        else:
            reason = "no_grad"
        return self.add(reason, call.name, lost, call)

    def detached_here(self, cuts: int) -> int:
        """Which parameters were detached in the same line, as in x.detach().numpy()."""
        line = source_line() if cuts else None
        found = 0
        for cut in self if cuts else ():
            if cuts & cut.bit and cut.line == line and cut.reason in ("detach", "data"):
                found |= cut.lost
        return found
