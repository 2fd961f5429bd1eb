"""The result of `fuse`: prints as a table, and can be undone."""

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from normscope.render.formatting import pluralize

_WIDTH = 80
_NUMBER = re.compile(r"\b\d+\b")  # layer indices; digits inside a name, as in norm1, belong to the name


@dataclass(frozen=True)
class _Entry:
    names: tuple[str, ...]
    """Names in the model; a shared module has several."""
    old: str

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class FusedModule(_Entry):
    """A fused norm or activation."""

    new: str
    what: Literal["norm", "activation"] = "norm"


@dataclass(frozen=True)
class Skipped(_Entry):
    """A norm that was not fused."""

    reason: str


@dataclass(frozen=True, repr=False)
class FuseReport:
    """What was fused, and what was skipped and why. Call `undo()`, or use it as a context: `with fuse(model): ...`."""

    fused: tuple[FusedModule, ...]
    skipped: tuple[Skipped, ...]
    _undo: list[Callable[[], None]] = field(default_factory=list, compare=False)

    def undo(self) -> None:
        """Restore the class of every module. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> "FuseReport":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __str__(self) -> str:
        if not self.fused and not self.skipped:
            return "nothing to fuse"
        lines = [f"fused {self._counts()}"]
        lines += _paragraphs((f"{entry.old} -> {entry.new}", entry.names) for entry in self.fused)
        if self.skipped:
            lines.append(f"skipped {len(self.skipped)}")
            lines += _paragraphs((f"{entry.old}: {entry.reason}", entry.names) for entry in self.skipped)
        return "\n".join(lines)

    __repr__ = __str__

    def _counts(self) -> str:
        norms = sum(entry.what == "norm" for entry in self.fused)
        activations = len(self.fused) - norms
        parts = [f"{norms} of {norms + len(self.skipped)} norms"] if norms or self.skipped else []
        if activations:
            parts.append(pluralize(activations, "activation"))
        return " and ".join(parts)


def _paragraphs(entries: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Group modules by text."""
    places: dict[str, list[tuple[str, ...]]] = {}
    for text, names in entries:
        places.setdefault(text, []).append(names)
    lines = []
    for text, modules in places.items():
        lines += textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)
        lines += [f"    {line}" for line in _merge_names(modules)]
    return lines


def _merge_names(modules: list[tuple[str, ...]]) -> list[str]:
    """Merge names that differ only in their indices: layers.0-11.norm."""
    alike: dict[str, list[str]] = {}
    for names in modules:
        shown = " = ".join(name or "(the model)" for name in names)
        alike.setdefault(_NUMBER.sub("*", shown), []).append(shown)
    return [_merge(group) for group in alike.values()]


def _merge(group: list[str]) -> str:
    numbers = [list(map(int, _NUMBER.findall(name))) for name in group]
    columns = iter([_ranges(column) for column in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda _: next(columns), group[0]) + f"  ({len(group)})" * (len(group) > 1)


def _ranges(numbers: Iterable[int]) -> str:
    """0-3,7 for 0 1 2 3 7."""
    ordered = enumerate(sorted(set(numbers)))  # within a run, number - index stays the same
    runs = [[number for _, number in run] for _, run in itertools.groupby(ordered, lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
