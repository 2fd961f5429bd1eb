"""Properties of random scopes, shapes and texts."""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import ScopeError
from normscope.scope import Plan, Scope
from normscope.scope.grammar import SplitDimension, parse

seeded = settings(derandomize=True, deadline=None)  # the same cases in every run, however busy the machine


@dataclass(frozen=True)
class Part:
    """One axis of a generated scope: its name, and whether it is to stand in brackets."""

    name: str
    bracketed: bool
    size: int


@dataclass(frozen=True)
class Case:
    """A scope that was made and not read, with a shape that fits it."""

    dims: tuple[tuple[Part, ...], ...]  # one entry for each dimension; several parts are a split
    rest: tuple[Part, ...]  # the dimensions that '...' stands for, all bracketed or none
    rest_at: int | None
    blank: str

    @property
    def text(self) -> str:
        words = [self._dim(parts) for parts in self.dims]
        if self.rest_at is not None:
            words.insert(self.rest_at, "[...]" if self.rest_bracketed else "...")
        return self.blank.join(words)

    def _dim(self, parts: tuple[Part, ...]) -> str:
        words = [f"[{part.name}]" if part.bracketed else part.name for part in parts]
        return words[0] if len(words) == 1 else f"({self.blank.join(words)})"

    @property
    def rest_bracketed(self) -> bool:
        return any(part.bracketed for part in self.rest)

    @property
    def entries(self) -> list[tuple[Part, ...]]:
        """The dimensions with '...' written out."""
        dims = list(self.dims)
        at = self.rest_at or 0
        return [*dims[:at], *((part,) for part in self.rest), *dims[at:]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(part.size for part in parts) for parts in self.entries)

    @property
    def sizes(self) -> dict[str, int]:
        """What the shape alone does not tell: all parts of a split but the last."""
        return {part.name: part.size for parts in self.dims for part in parts[:-1]}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,4}", fullmatch=True)
    unique = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    parts = [Part(name, draw(st.booleans()), draw(st.integers(1, 4))) for name in unique]
    dims: list[tuple[Part, ...]] = []
    while parts:
        width = draw(st.integers(1, 3))
        dims.append(tuple(parts[:width]))
        parts = parts[width:]
    rest_at = draw(st.none() | st.integers(0, len(dims)))
    bracketed = draw(st.booleans())
    rest_sizes = draw(st.lists(st.integers(1, 4), max_size=2)) if rest_at is not None else []
    rest = tuple(Part("...", bracketed, size) for size in rest_sizes)
    if not any(part.bracketed for group in dims for part in group):
        first = dims[0][0]
        dims[0] = (Part(first.name, True, first.size), *dims[0][1:])
    return Case(tuple(dims), rest, rest_at, draw(st.sampled_from([" ", "  ", "\t", "\n"])))


@seeded
@given(cases())
def test_parsing_inverts_printing(case: Case) -> None:
    dims = Scope.parse(case.text).dims
    read = [
        [(axis.name, axis.bracketed) for axis in (dim.axes if isinstance(dim, SplitDimension) else (dim,))]
        for dim in dims
    ]
    written = [[(part.name, part.bracketed) for part in parts] for parts in case.dims]
    if case.rest_at is not None:
        written.insert(case.rest_at, [("...", case.rest_bracketed)])
    assert read == written


@seeded
@given(cases())
def test_every_axis_keeps_its_position(case: Case) -> None:
    text = case.text
    for dim in parse(text):
        axes = dim.axes if isinstance(dim, SplitDimension) else (dim,)
        assert all(text[slice(*axis.span)] == axis.name for axis in axes)
        if isinstance(dim, SplitDimension):
            assert text[dim.span[0]] + text[dim.span[1] - 1] == "()"


@seeded
@given(cases())
def test_plan_agrees_with_counting(case: Case) -> None:
    """Give each value the tuple of its kept indices: values with the same tuple share a statistic."""
    plan = Scope.parse(case.text).bind(case.shape, **case.sizes)
    parts = [part for entry in case.entries for part in entry]
    tensor = np.arange(math.prod(case.shape)).reshape(case.shape).reshape([part.size for part in parts])
    groups: dict[tuple[int, ...], list[int]] = {}
    for index in np.ndindex(tensor.shape):
        key = tuple(i for i, part in zip(index, parts, strict=True) if not part.bracketed)
        groups.setdefault(key, []).append(int(tensor[index]))
    assert plan.split_shape == tensor.shape
    assert {len(values) for values in groups.values()} == {plan.count}
    assert len(groups) == math.prod(plan.statistics_shape)
    sums = tensor.sum(axis=plan.reduced)
    assert sums.shape == plan.statistics_shape
    assert all(sums[key] == sum(values) for key, values in groups.items())
    assert sorted((*plan.reduced, *plan.kept)) == list(range(len(parts)))


@seeded
@given(cases())
def test_sizes_agree_with_the_shape(case: Case) -> None:
    known = Scope.parse(case.text).sizes(case.shape, **case.sizes)
    assert known == {part.name: part.size for parts in case.dims for part in parts}


def outcome(text: str, shape: list[int] | None = None, **sizes: int) -> Scope | Plan | ScopeError:
    """What comes of a text, or of a text and a shape; an error of any other kind goes through."""
    try:
        scope = Scope.parse(text)
        return scope if shape is None else scope.bind(shape, **sizes)
    except ScopeError as error:
        return error


@seeded
@given(st.text() | st.text(alphabet="nc gh[]()., \t\n1_"))
def test_random_text_raises_nothing_but_scope_errors(text: str) -> None:
    result = outcome(text)
    if isinstance(result, ScopeError):
        start, end = result.span
        assert 0 <= start <= end <= len(text)
        assert result.fix
    else:
        assert str(result) == text


@seeded
@given(cases(), st.lists(st.integers(-1, 9), max_size=5), st.dictionaries(st.sampled_from("abcng"), st.integers(-1, 9)))
def test_random_shapes_raise_nothing_but_scope_errors(case: Case, shape: list[int], sizes: dict[str, int]) -> None:
    result = outcome(case.text, shape, **sizes)
    if isinstance(result, Plan):
        assert math.prod(result.split_shape) == math.prod(shape)
    else:
        assert isinstance(result, ScopeError)
        assert result.given
