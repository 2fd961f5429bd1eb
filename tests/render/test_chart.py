"""Charts: well-formed, within their frame, with every line, gap and name where it belongs."""

import json
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normscope.render.chart import MAX_POINTS, Chart, ChartLine, draw_chart
from normscope.render.chart_svg_file import chart_file
from tests.pairs import every_value

seeded = settings(derandomize=True, deadline=None)
anything = st.floats(-1e12, 1e12) | st.just(math.nan) | st.just(math.inf)


def parse(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(draw_chart(chart))  # a figure is well-formed XML too


def places(figure: ElementTree.Element, number: int = 0) -> list[tuple[float, float]]:
    """The points of a line's path."""
    path = figure.findall(".//path")[number].attrib["d"]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+) (\S+)", path)]


def hover(figure: ElementTree.Element) -> Any:
    (svg,) = figure.findall("svg")
    return json.loads(svg.attrib["data-lines"])


@seeded
@example([1.0, 2.2250738585e-313], False, True, False, False)  # below the smallest normal number
@example([1.7e308, 5e-324], True, True, True, False)
@given(st.lists(anything, max_size=30), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_any_numbers_stay_in_the_frame(ys: list[float], log_x: bool, log_y: bool, rough: bool, zero: bool) -> None:
    line = ChartLine("a", [(float(x), y) for x, y in enumerate(ys)], dots=True, clip_outliers=rough)
    figure = parse(Chart("t", "x", "y", [line], log_x=log_x, log_y=log_y, y_from_zero=zero and not log_y))
    for path in figure.findall(".//path"):
        for x, y in re.findall(r"[ML](\S+) (\S+)", path.attrib["d"]):
            assert 0 <= float(x) <= 480
            assert 0 <= float(y) <= 240
    for text in figure.findall(".//text"):
        assert -20 <= float(text.attrib["x"]) <= 480
        assert 0 <= float(text.attrib["y"]) <= 240


@every_value(
    unknown={"nan": math.nan, "inf": math.inf, "-inf": -math.inf},
    log_x={"linear": False, "log": True},
    count={"few": 3, "many": 2 * MAX_POINTS},
)
def test_a_point_without_a_finite_x_is_left_out(unknown: float, log_x: bool, count: int) -> None:
    known = [(float(x), 2.0 * x) for x in range(1, count)]
    with_unknown = [known[0], (unknown, 3.0), *known[1:]]
    bars = [(x, y, y + 1) for x, y in with_unknown]
    found, expected = (
        Chart("t", "step", "y", [ChartLine("a", points, dots=True, interval=interval)], log_x=log_x)
        for points, interval in ((with_unknown, bars), (known, [bars[0], *bars[2:]]))
    )
    assert hover(parse(found)) == hover(parse(expected))
    assert chart_file(found) == chart_file(expected)
    assert "No data yet." in draw_chart(replace(found, lines=[ChartLine("a", [(unknown, 1.0)])]))


def test_a_line_without_a_point_is_not_in_the_legend() -> None:
    zeros, ones = ChartLine("step 0", [(0, 0.0), (1, 0.0)]), ChartLine("step 5", [(0, 1.0), (1, 2.0)])
    figure = draw_chart(Chart("Gradient", "layer", "rms", [zeros, ones], categories=["a", "b"], log_y=True))
    assert "step 0</span>" not in figure
    assert "step 5</span>" in figure
    alone = draw_chart(Chart("Gradient", "layer", "rms", [zeros], log_y=True))
    assert "No data yet." in alone
    assert "<svg" not in alone


def test_steps_are_whole_numbers() -> None:
    figure = parse(Chart("t", "step", "y", [ChartLine("a", [(1, 2.0)])], y_from_zero=True))
    words = [text.text for text in figure.findall(".//text") if float(text.attrib["y"]) > 200]
    assert words == ["1", "step"]


def test_a_logarithmic_axis_says_so() -> None:
    line = ChartLine("a", [(1, 1.0), (10, 10.0)])
    words = [text.text for text in parse(Chart("t", "step", "norm", [line], log_x=True)).findall(".//text")]
    assert "step, logarithmic" in words
    assert "norm" in words


def test_a_wide_one_is_there_for_narrow_screens_too() -> None:
    line = ChartLine("a", [(1, 1.0), (2, 3.0)])
    wide, narrow = parse(Chart("t", "x", "y", [line], width=1000, height=330)).findall("svg")
    assert (wide.attrib["viewBox"], narrow.attrib["viewBox"]) == ("0 0 1000 330", "0 0 480 240")
    assert (wide.attrib["class"], narrow.attrib["class"]) == ("wide", "narrow")


def test_a_higher_value_is_higher_on_the_page() -> None:
    line = ChartLine("a", [(1, 1.0), (2, 3.0), (3, 2.0)])
    (_, low), (_, high), (_, middle) = places(parse(Chart("t", "x", "y", [line])))
    assert high < middle < low
    assert middle == pytest.approx((low + high) / 2, abs=0.2)


def test_a_logarithmic_axis_has_equal_ratios() -> None:
    line = ChartLine("a", [(1, 1.0), (10, 10.0), (100, 100.0)])
    points = places(parse(Chart("t", "x", "y", [line], log_x=True, log_y=True)))
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


def test_what_is_not_finite_leaves_a_gap() -> None:
    line = ChartLine("a", [(1, 1.0), (2, 2.0), (3, math.nan), (4, 1.0), (5, 2.0)])
    (path,) = parse(Chart("t", "x", "y", [line])).findall(".//path")
    assert [part[0] for part in path.attrib["d"].split() if part[0] in "ML"] == ["M", "L", "M", "L"]


def test_a_rough_line_may_leave_and_a_calm_one_may_not() -> None:
    points = [(float(x), 1000.0 if x == 500 else 1 + math.sin(x)) for x in range(1000)]
    rough = places(parse(Chart("t", "x", "y", [ChartLine("a", points, clip_outliers=True)])))
    calm = places(parse(Chart("t", "x", "y", [ChartLine("a", points)])))
    assert max(y for _, y in rough) - sorted(y for _, y in rough)[1] > 100  # the waves fill the height
    assert all(10 <= y <= 200 for _, y in rough)  # and the peak stays at the edge
    assert max(y for _, y in calm) - sorted(y for _, y in calm)[1] < 10  # the peak presses them flat


def test_levels_have_a_line_and_a_name_and_room() -> None:
    figure = parse(Chart("t", "x", "y", [ChartLine("a", [(1, 4.0), (2, 3.0)])], reference_lines=[("floor 1.5", 1.5)]))
    (level,) = [line for line in figure.findall(".//line") if line.attrib["class"] == "level"]
    assert max(y for _, y in places(figure)) < float(level.attrib["y1"]) < 240 - 40
    assert [text.text for text in figure.findall(".//text") if text.get("class") == "level"] == ["floor 1.5"]


def test_a_level_without_a_place_is_left_out() -> None:
    levels = [("zero", 0.0), ("none", math.nan), ("one", 1.0)]
    figure = parse(Chart("t", "x", "y", [ChartLine("a", [(1, 4.0), (2, 3.0)])], reference_lines=levels, log_y=True))
    assert [text.text for text in figure.findall(".//text") if text.get("class") == "level"] == ["one"]


def test_names_stand_below_the_axis() -> None:
    chart = Chart("t", "layer", "y", [ChartLine("a", [(0, 1.0), (1, 2.0)])], categories=["embedding", "0"])
    words = [text.text for text in parse(chart).findall(".//text")]
    assert "embedding" in words
    assert hover(parse(chart))[0]["points"][0][1:] == ["layer embedding", "1"]


def test_dots_side_by_side_have_the_name_that_they_stand_above() -> None:
    lines = [
        ChartLine(label, [(i + shift, 1.0) for i in range(3)], connected=False)
        for label, shift in (("A", -0.4), ("B", 0.4))
    ]
    figure = parse(Chart("t", "unit", "loss", lines, categories=["relu", "gelu", "tanh"]))
    wanted = ["unit relu", "unit gelu", "unit tanh"]
    assert [[point[1] for point in line["points"]] for line in hover(figure)] == [wanted, wanted]
    assert [node.text for node in figure.findall(".//title")] == [f"{x}: 1 at {name}" for x in "AB" for name in wanted]


def test_the_pointer_finds_every_line() -> None:
    lines = [ChartLine("one", [(1, 1.0), (2, 2.0)]), ChartLine("two", [(1, 30_000.0), (2, math.nan)])]
    found = hover(parse(Chart("t", "step", "y", lines)))
    assert [line["label"] for line in found] == ["one", "two"]
    assert [point[1:] for point in found[0]["points"]] == [["step 1", "1"], ["step 2", "2"]]
    assert [point[1:] for point in found[1]["points"]] == [["step 1", "30,000"]]


def test_dots_say_their_value_without_a_script() -> None:
    titles = [node.text for node in parse(Chart("t", "step", "y", [ChartLine("a", [(50, 1.25)])])).findall(".//title")]
    assert titles == ["a: 1.25 at step 50"]
    many = ChartLine("a", [(float(x), float(x)) for x in range(200)], dots=True)
    assert parse(Chart("t", "step", "y", [many])).findall(".//circle") == []


def test_a_long_curve_is_thinned() -> None:
    long = ChartLine("a", [(float(x), math.sin(x)) for x in range(50_000)])
    figure = parse(Chart("t", "x", "y", [long]))
    assert len(places(figure)) <= MAX_POINTS
    assert len(draw_chart(Chart("t", "x", "y", [long]))) < 60_000


def test_words_are_escaped() -> None:
    evil = "</svg><script>alert('x')</script>\""
    chart = Chart(evil, evil, evil, [ChartLine(evil, [(0, 1.0)]), ChartLine("b", [(0, 1.0)])], [(evil, 1.0)], [evil])
    assert "<script" not in draw_chart(chart)
    assert evil in "".join(parse(chart).itertext())


def test_a_screen_reader_hears_where_the_lines_go() -> None:
    (svg,) = parse(Chart("Loss", "x", "y", [ChartLine("training", [(1, 4.0), (2, 1.5)])])).findall("svg")
    assert svg.attrib["aria-label"] == "Loss: training from 4 to 1.5"


def test_no_lines_at_all() -> None:
    assert parse(Chart("t", "x", "y", [])).findall(".//path") == []


REACHING = ChartLine("mean", [(0, 1.0), (1, 2.0)], "a", interval=[(0, 0.5, 1.5), (1, -4.0, 9.0)])


def test_a_band_is_inside_of_the_chart_and_makes_room_for_itself() -> None:
    chart = Chart("Loss", "step", "nats", [REACHING])
    low, high = chart.scales()[1].low, chart.scales()[1].high
    assert low < -4.0
    assert high > 9.0
    (points,) = re.findall(r'class="band a" points="([^"]*)"', draw_chart(chart))
    ys = [float(pair.split(",")[1]) for pair in points.split()]
    assert len(ys) == 4
    assert all(0 <= y <= chart.height for y in ys)


def test_what_a_reach_shows_is_said_once_on_the_page_and_in_a_file() -> None:
    bars = [
        replace(REACHING, label=label, connected=False, interval_label="95% of each mean") for label in ("one", "two")
    ]
    chart = Chart("Loss", "step", "nats", [*bars, replace(REACHING, interval_label="least to greatest")])
    figure, text = draw_chart(chart), chart_file(chart)
    for words in ("bars: 95% of each mean", "band: least to greatest"):
        assert figure.count(words) == text.count(words) == 1
    assert "band:" not in draw_chart(Chart("Loss", "step", "nats", [REACHING]))
    (legend,) = {float(y) for y in re.findall(r'y="(\d+)">(?:one|two|mean)<', text)}
    (below,) = re.findall(r'y="(\d+)">bars: ', text)
    (top,) = re.findall(r"translate\(0 (\d+)\)", text)
    assert legend < float(below) < float(top)


def test_dots_by_themselves_have_bars_and_no_line() -> None:
    alone = draw_chart(Chart("Loss", "", "nats", [replace(REACHING, connected=False)], categories=["one", "two"]))
    assert "polygon" not in alone
    assert alone.count("<circle") == 2
    assert len(re.findall(r'<path class="line a" d="M[^"]*V', alone)) == 2


def test_a_theory_is_dashed_in_the_chart_and_in_its_legend() -> None:
    figure = draw_chart(Chart("Variance", "layer", "", [REACHING, replace(REACHING, label="theory", dashed=True)]))
    assert 'class="line dashed a"' in figure
    assert '<i class="dashed a"' in figure


def test_a_bar_below_zero_ends_at_the_edge_of_a_logarithmic_chart() -> None:
    chart = Chart("Loss", "step", "nats", [replace(REACHING, connected=False)], log_y=True)
    assert all(math.isfinite(float(end)) for end in re.findall(r"V([-\d.a-z]+)", draw_chart(chart)))


def test_a_file_of_its_own_is_whole_and_has_title_legend_and_style() -> None:
    lines = [REACHING, *(replace(REACHING, label=f"a rather long name {i}") for i in range(6))]
    text = chart_file(Chart("A < B", "step", "nats", lines))
    root = ElementTree.fromstring(text)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "A < B"
    assert {line.label for line in lines} <= set(words)
    assert "prefers-color-scheme" not in text
    assert "var(" not in text  # viewers of files do not know it
    assert ".chart .a { color: #2f6fb7 }" in text
    width = float(root.attrib["width"])
    assert all(float(element.attrib["x"]) < width for element in root.iter("{http://www.w3.org/2000/svg}text"))
