"""What `fuse` did: a value that reads as a table and can be undone."""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from normscope.interop.fuse.change import AppliedChange

_WIDTH = 80
_NUMBER = re.compile(r"\b\d+\b")  # of a layer in a list; those inside a word, as in norm1, are part of its name


@dataclass(frozen=True)
class FusedModule:
    """A norm, or an activation, that was fused."""

    names: tuple[str, ...]
    """Where the model has it; a shared module has several places."""
    was: str
    became: str
    what: Literal["norm", "activation"] = "norm"

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Skipped:
    """A norm that was left as it is."""

    names: tuple[str, ...]
    was: str
    why: str

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, repr=False)
class FuseReport:
    """What was fused, what was left and why. Undo it by `undo()`, or use it as a context: `with fuse(model): ...`."""

    swapped: tuple[FusedModule, ...]
    left: tuple[Skipped, ...]
    _applied: list[AppliedChange] = field(default_factory=list, compare=False)

    def undo(self) -> None:
        """Give every module its own class back. A second call does nothing."""
        while self._applied:
            self._applied.pop().undo()

    def __enter__(self) -> "FuseReport":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        if not self.swapped and not self.left:
            return "nothing to fuse"
        lines = [f"fused {self._counts()}"]
        lines += _paragraphs((f"{entry.was} -> {entry.became}", entry.names) for entry in self.swapped)
        if self.left:
            lines.append(f"left {len(self.left)}")
            lines += _paragraphs((f"{entry.was}: {entry.why}", entry.names) for entry in self.left)
        return "\n".join(lines)

    __repr__ = __str__

    def _counts(self) -> str:
        norms = sum(entry.what == "norm" for entry in self.swapped)
        activations = len(self.swapped) - norms
        parts = []
        if norms or self.left:
            parts.append(f"{norms} of {norms + len(self.left)} norms")
        if activations:
            parts.append(f"{activations} activation{'s' * (activations > 1)}")
        return " and ".join(parts)


def _paragraphs(entries: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Each text once, and under it the modules that it is true of."""
    places: dict[str, list[tuple[str, ...]]] = {}
    for text, names in entries:
        places.setdefault(text, []).append(names)
    lines = []
    for text, modules in places.items():
        lines += textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)
        lines += [f"    {line}" for line in _joined(modules)]
    return lines


def _joined(modules: list[tuple[str, ...]]) -> list[str]:
    """The names, with those that differ in their numbers alone as one: layers.0-11.norm."""
    alike: dict[str, list[str]] = {}
    for names in modules:
        shown = " = ".join(name or "(the model)" for name in names)
        alike.setdefault(_NUMBER.sub("*", shown), []).append(shown)
    return [_as_one(group) for group in alike.values()]


def _as_one(group: list[str]) -> str:
    numbers = [list(map(int, _NUMBER.findall(name))) for name in group]
    columns = iter([_ranges(column) for column in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda _: next(columns), group[0]) + f"  ({len(group)})" * (len(group) > 1)


def _ranges(numbers: Iterable[int]) -> str:
    """0-3,7 for 0 1 2 3 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
