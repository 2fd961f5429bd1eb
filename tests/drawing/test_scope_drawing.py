"""Drawings of scopes: golden pictures, and letters that mean what they say."""

import itertools
import math
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.drawing.scopes.draw_scope import draw_rich, draw_scope, draw_svg
from normscope.drawing.scopes.statistic_map import CellGrid, GridRow, StatisticMap, measure, statistic_at
from normscope.errors import ScopeError
from normscope.scope import Plan, Scope

GOLDEN = Path(__file__).parent / "golden"

PICTURES: dict[str, tuple[str, tuple[int, ...], dict[str, int]]] = {
    "layer_norm_transformer": ("... [d]", (2, 3, 8), {}),
    "layer_norm_convnet": ("n [c h w]", (2, 4, 3, 3), {}),
    "batch_norm": ("[n] c [...]", (2, 4, 3, 3), {}),
    "instance_norm": ("n c [...]", (2, 4, 3, 3), {}),
    "group_norm": ("n (g [c]) [...]", (2, 4, 3, 3), {"g": 2}),
    "one_axis": ("[d]", (5,), {}),
    "two_axes": ("n [c]", (3, 4), {}),
    "large": ("[n] c [...]", (32, 64, 56, 56), {}),
    "many_axes": ("a b c d [e]", (2, 3, 3, 9, 14), {}),
    "no_values": ("n [c]", (0, 4), {}),
}

scopes = st.sampled_from(
    ["a b [c]", "[a] b c", "a [b c]", "a (b [c]) [d]", "[a] (b c) d", "... [d]", "[...] d", "a [b]"]
)
seeded = settings(derandomize=True, deadline=None)


@pytest.mark.parametrize("name", PICTURES)
def test_golden(name: str) -> None:
    scope, shape, sizes = PICTURES[name]
    assert draw_scope(scope, shape, **sizes) + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_every_line_fits_a_terminal(name: str) -> None:
    scope, shape, sizes = PICTURES[name]
    assert max(map(len, draw_scope(scope, shape, **sizes).splitlines())) <= 80


@pytest.mark.parametrize("name", PICTURES)
def test_colors_change_no_character(name: str) -> None:
    scope, shape, sizes = PICTURES[name]
    assert draw_rich(scope, shape, **sizes).plain == draw_scope(scope, shape, **sizes)


def test_one_mean_has_one_color() -> None:
    text = draw_rich("n [c]", (3, 4))
    styles = defaultdict(set)
    for span in text.spans:
        for letter in text.plain[span.start : span.end].strip():
            styles[letter].add(str(span.style))
    assert set(styles) == {"a", "b", "c"}
    assert all(len(colors) == 1 for colors in styles.values())
    assert len({next(iter(colors)) for colors in styles.values()}) == 3


def cells(drawn: StatisticMap) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """The letters of a map as one array over the axes, as far as they are shown."""
    numbers = [s for band in drawn.bands for box in band.boxes for row in box.rows for s in row]
    return np.array([drawn.letters[s] for s in numbers]).reshape(drawn.shown)


@seeded
@given(scopes, st.lists(st.integers(1, 7), min_size=4, max_size=4))
def test_same_letter_means_same_statistic(text: str, sizes: list[int]) -> None:
    scope = Scope.parse(text)
    rank = max(2, len(scope.dims))
    shape = [sizes[i] * (2 if i == 1 else 1) for i in range(rank)]
    given_sizes = {"b": sizes[1]} if "(" in text else {}
    drawn = measure(scope, shape, given_sizes)
    # Averaging numbers the statistics in a way of its own: cells that share one get the same mean, and no others do.
    rng = np.random.default_rng(0)
    values = rng.random(shape).reshape(drawn.plan.split_shape)
    means = np.broadcast_to(values.mean(axis=drawn.plan.reduced, keepdims=True), values.shape)
    shown = means[tuple(slice(0, size) for size in drawn.shown)]
    pairs = set(zip(cells(drawn).ravel().tolist(), shown.ravel().tolist(), strict=True))
    assert len(pairs) == len({letter for letter, _ in pairs}) == len({mean for _, mean in pairs})


@seeded
@given(scopes, st.integers(1, 3))
def test_statistics_are_numbered_as_torch_lays_them_out(text: str, size: int) -> None:
    scope = Scope.parse(text)
    shape = [size * 2] * max(2, len(scope.dims))
    plan = scope.bind(shape, **({"b": 2} if "(" in text else {}))
    numbers = np.arange(math.prod(plan.statistics_shape)).reshape(
        [1 if i in plan.reduced else size for i, size in enumerate(plan.split_shape)]
    )
    expected = np.broadcast_to(numbers, plan.split_shape)
    for index in itertools.product(*map(range, plan.split_shape)):
        assert statistic_at(plan, index) == expected[index]


@pytest.mark.parametrize(
    ("rows", "columns", "last"), [(1, 1, "a"), (2, 13, "z"), (3, 9, "A"), (4, 13, "Z"), (4, 14, "cd"), (12, 24, "lb")]
)
def test_letters_are_unique(rows: int, columns: int, last: str) -> None:
    letters = StatisticMap("", *_lone_box(rows, columns)).letters
    assert letters[-1] == last
    assert len(letters) == len(set(letters)) == rows * columns


def _lone_box(rows: int, columns: int) -> tuple[Plan, tuple[str, ...], tuple[int, ...], tuple[GridRow, ...]]:
    """A map of one box in which no two cells share a mean."""
    plan = Scope.parse("a b [c]").bind((rows, columns, 1))
    cells = tuple(tuple(row * columns + column for column in range(columns)) for row in range(rows))
    return plan, plan.names, plan.shape, (GridRow("", (CellGrid("", cells),)),)


def test_an_error_points_at_the_scope() -> None:
    with pytest.raises(ScopeError, match=re.escape("unclosed '['")):
        draw_scope("n [c", (2, 3))


def test_axes_may_have_the_names_of_arguments() -> None:
    assert draw_scope("scope [shape]", (2, 3), scope=2, shape=3) == draw_scope("scope [shape]", (2, 3))


@pytest.mark.parametrize("name", PICTURES)
def test_the_svg_is_self_contained_and_shows_every_cell(name: str) -> None:
    scope, shape, sizes = PICTURES[name]
    image = draw_svg(scope, shape, **sizes)
    root = ElementTree.fromstring(image)
    drawn = measure(scope, shape, sizes)
    count = math.prod(drawn.shown)
    fills = [node.get("fill") for node in root.findall(".//{*}rect") if node.get("class") == "cell"]
    letters = [node.text for node in root.findall(".//{*}text") if node.get("class") == "letter"]
    assert len(fills) == len(letters) == count
    assert letters == (cells(drawn).ravel().tolist() if count else [])
    assert len(set(zip(fills, letters, strict=True))) == len(set(letters))
    assert "prefers-color-scheme: dark" in image
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|href", image) == []


@pytest.mark.parametrize("name", PICTURES)
def test_the_svg_contains_all_its_elements(name: str) -> None:
    scope, shape, sizes = PICTURES[name]
    root = ElementTree.fromstring(draw_svg(scope, shape, **sizes))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for node in root.findall(".//{*}rect"):
        assert float(node.attrib["x"]) + float(node.attrib["width"]) <= width
        assert float(node.attrib["y"]) + float(node.attrib["height"]) <= height
    for node in root.findall(".//{*}text"):
        assert 0 < float(node.attrib["y"]) < height
