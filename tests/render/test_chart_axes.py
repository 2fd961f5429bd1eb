"""What stands around the lines: names where there is room, ticks where the data are, levels of their own."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.render.axis_scale import extend_to_tick, fit_scale
from normscope.render.chart import Chart, ChartLine, draw_chart
from normscope.render.chart_svg_file import chart_file

BARS = ChartLine("one", [(0, 1.0), (1, 2.0)], connected=False, interval=[(0, 0.5, 1.5), (1, 1.0, 3.0)])
seeded = settings(derandomize=True, deadline=None)


def below(chart: Chart) -> list[str]:
    """What stands below the x axis, without its label."""
    return re.findall(r'y="217.0" text-anchor="middle">([^<]*)<', draw_chart(chart))


def level_text(chart: Chart) -> tuple[float, float]:
    """Where the name of the only level begins."""
    ((x, y),) = re.findall(r'<text class="level" x="([\d.]+)" y="([\d.]+)"', draw_chart(chart))
    return float(x), float(y)


def level_height(chart: Chart) -> float:
    (height,) = set(re.findall(r'<line class="level".*?y1="([\d.]+)"', draw_chart(chart)))
    return float(height)


def test_a_name_is_not_written_on_a_line() -> None:
    early = ChartLine("a", [(0, 1.1), (4, 1.1), (5, 3.0), (10, 3.0)])  # along the level on the left
    late = ChartLine("a", [(0, 3.0), (5, 3.0), (6, 1.1), (10, 1.1)])
    right, left = (
        level_text(Chart("", "", "", [line], reference_lines=[("the floor", 1.0)])) for line in (early, late)
    )
    assert left[0] < 100
    assert right[0] > 300
    assert left[1] == right[1]


def test_a_name_goes_below_its_line_where_it_is_crowded_above() -> None:
    crowd = [ChartLine(f"{i}", [(0, 1.0 + 0.02 * i), (10, 1.0 + 0.02 * i)]) for i in range(1, 12)]
    chart = Chart("", "", "", [*crowd, ChartLine("far", [(0, 0.0), (0.01, 0.0)])], reference_lines=[("floor", 1.0)])
    assert level_text(chart)[1] > level_height(chart)
    alone = replace(chart, lines=[ChartLine("far", [(0, 0.0), (10, 0.0)]), ChartLine("high", [(0, 2.0), (10, 2.0)])])
    assert level_text(alone)[1] < level_height(alone)


@seeded
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.floats(-5, 5), st.booleans())
def test_a_name_is_always_in_the_frame(ys: list[float], level: float, names: bool) -> None:
    line = ChartLine("a", [(float(i), y) for i, y in enumerate(ys)])
    chart = Chart(
        "", "", "", [line], reference_lines=[("what is wanted", level)], categories=["n"] * len(ys) if names else ()
    )
    x, y = level_text(chart)
    assert 56 <= x <= 480 - 14 - 6 * len("what is wanted")
    assert 0 < y < 210


def test_two_levels_that_are_near_each_other_have_names_apart() -> None:
    chart = Chart("", "", "", [ChartLine("a", [(0, 0.0), (1, 9.0)])], reference_lines=[("one", 4.0), ("two", 4.05)])
    found = re.findall(r'<text class="level" x="([\d.]+)" y="([\d.]+)"', draw_chart(chart))
    (x1, y1), (x2, y2) = ((float(x), float(y)) for x, y in found)
    assert abs(x1 - x2) > 18 or abs(y1 - y2) > 10


def test_a_level_of_each_name_stays_with_it() -> None:
    chart = Chart("", "", "", [BARS], categories=["x", "y"], category_lines=("the line", [0.25, 4.0]))
    drawn = draw_chart(chart)
    lines = re.findall(r'<line class="level" x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)"', drawn)
    (start, end, low), (start2, end2, high) = (map(float, line) for line in lines)
    x, y = chart.scales()
    assert start < x.position(0) < end < start2 < x.position(1) < end2
    assert low == pytest.approx(y.position(0.25), abs=0.1)
    assert high == pytest.approx(y.position(4.0), abs=0.1)
    assert drawn.count(">the line<") == 1


def test_a_name_that_is_longer_than_its_line_is_in_the_frame() -> None:
    own = ("a rather long name for a line", [0.25, 4.0, 0.25, 4.0])
    for lone in range(4):  # there is room at one of them only
        others = [i for i in range(4) if i != lone]
        crowd = ChartLine("a", [(i - 0.4 + 0.04 * j, 0.1 * j) for i in others for j in range(20)], connected=False)
        x, _ = level_text(Chart("", "", "", [crowd], categories=["x", "y", "z", "w"], category_lines=own))
        assert 56 <= x <= 480 - 14 - 6 * len(own[0])


def test_the_axis_begins_with_a_number_below_the_data() -> None:
    chart = Chart("", "", "", [ChartLine("a", [(0, 1.19), (1, 2.0), (2, 1.7)])])
    labels = [float(label) for label in re.findall(r'text-anchor="end">([\d.]+)<', draw_chart(chart))]
    assert min(labels) <= 1.19


def test_a_few_places_of_a_logarithmic_axis_are_named_each() -> None:
    chart = Chart("", "", "", [ChartLine("a", [(at, 1.0) for at in (2, 4, 8, 32)])], log_x=True)
    assert below(chart) == ["2", "4", "8", "32"]
    theory = ChartLine("theory", [(1.1**i, 1.0) for i in range(7, 36)], dashed=True)
    assert below(replace(chart, lines=[*chart.lines, theory])) == ["2", "4", "8", "32"]
    many = [ChartLine("a", [(2.0**i, 1.0) for i in range(12)])]
    assert below(replace(chart, lines=many)) != [f"{2**i}" for i in range(12)]
    crowded = [ChartLine("a", [(1, 1.0), (1000, 1.0), (1010, 1.0)])]
    assert "1010" not in below(replace(chart, lines=crowded))


@seeded
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8), st.booleans())
def test_a_round_number_stands_at_or_below_the_least(values: list[float], log: bool) -> None:
    scale = extend_to_tick(fit_scale(values, 100, 0, log=log), values, 6)
    assert scale.ticks(6)[0] <= min(values) * (1 + 1e-9)
    assert scale.low <= min(values)
    assert scale.high >= max(values)


def test_dots_by_themselves_are_dots_in_the_legend() -> None:
    chart = Chart("", "", "", [BARS, replace(BARS, label="two", connected=True)])
    assert draw_chart(chart).count('<i class="point a"') == 1
    text = chart_file(chart)
    legend = text[: text.index("<g transform")]
    assert legend.count("<circle") == 1
    assert legend.count("<path") == 1


def test_a_long_title_has_two_lines_in_a_file_and_the_rest_is_below() -> None:
    titles_of_both = ("Loss", "Loss, and all that it is " * 3)
    short, long = (chart_file(Chart(title, "", "", [BARS, BARS])) for title in titles_of_both)
    tops = [float(re.findall(r"translate\(0 (\d+)\)", text)[0]) for text in (short, long)]
    titles = re.findall(r'y="(\d+)" style="font-size:13px[^>]*>([^<]*)<', long)
    assert [y for y, _ in titles] == ["17", "35"]
    assert " ".join(words for _, words in titles) == titles_of_both[1].strip()
    assert tops[1] - tops[0] == 18
    assert min(float(y) for y in re.findall(r'cy="([\d.]+)"', long[: long.index("<g transform")])) > 35


def test_what_is_drawn_beside_its_place_is_told_at_its_place() -> None:
    line = ChartLine("a", [(1, 1.0), (3, 2.0)], connected=False, interval=[(1, 0.5, 1.5), (3, 1.0, 3.0)])
    chart = Chart("", "blocks", "", [replace(line, offset=-20.0), replace(line, label="b", offset=20.0)])
    drawn = draw_chart(chart)
    dots = [float(x) for x in re.findall(r'<circle[^>]* cx="([\d.]+)"', drawn)]
    bars = [float(x) for x in re.findall(r'd="M[\d.]+ [\d.]+h8M([\d.]+) ', drawn)]
    assert dots == bars
    assert dots[2] - dots[0] == dots[3] - dots[1] == pytest.approx(40, abs=0.2)
    assert all(56 <= x <= 480 - 14 for x in dots)
    assert re.findall("<title>(.*?)</title>", drawn)[0] == "a: 1 at blocks 1"
