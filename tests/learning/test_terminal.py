"""Rendered explanations: numbers in columns, within the width, the same with and without colors."""

import html
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from rich.console import Console

from normscope.learning.catalog import TOPICS, explain
from normscope.learning.explanation import ExplanationValue, ReferenceCheck
from normscope.learning.terminal import format_values, render, render_rich
from tests.learning.cases import explained


def drawn(array: Any, digits: int = 4, width: int = 77, **words: tuple[str, ...]) -> list[str]:
    return format_values(ExplanationValue("x", np.asarray(array), **words), digits, width)


@pytest.mark.parametrize(
    ("array", "lines"),
    [
        ([3.0, -4.0, 0.0], ["3  -4   0"]),
        ([1.03923, -1.3856, 0.0], [" 1.0392  -1.3856   0.0000"]),
        ([[0.5, 2.0], [10.0, 1.0]], [" 0.5   2.0", "10.0   1.0"]),
        ([-1e-9, 0.5], ["0.0000  0.5000"]),
        ([1e7, 1.0], ["1.000e+07  1.000e+00"]),
        ([1e-7, 0.0], ["1.000e-07  0.000e+00"]),
        ([0.5, -np.inf], ["0.5  -inf"]),
        ([np.nan, np.inf], ["nan  inf"]),
        (np.array([7, 12]), ["7  12"]),
        (1.1920929e-07, ["1.19209e-07"]),
        (0.5, ["0.5"]),
        (8, ["8"]),
    ],
)
def test_number_formats(array: Any, lines: list[str]) -> None:
    assert [line.strip() for line in drawn(array)] == [line.strip() for line in lines]


def test_a_notebook_shows_the_same_text() -> None:
    worked = explain("relu2")
    assert worked._repr_html_() == f"<pre>{html.escape(render(worked))}</pre>"
    assert "&gt; relu = x.clamp(min=0)" in worked._repr_html_()


def test_matrices_are_side_by_side() -> None:
    array = np.arange(16.0).reshape(2, 2, 2, 2)
    assert drawn(array, axes=("n", "c", "h", "w")) == [
        "n=0  c=0       c=1",
        "      0   1     4   5",
        "      2   3     6   7",
        "",
        "n=1  c=0       c=1",
        "      8   9    12  13",
        "     10  11    14  15",
    ]
    assert drawn(array)[:2] == ["[0]  [0]       [1]", "      0   1     4   5"]


def test_a_table_has_column_titles() -> None:
    assert drawn([[1.0, 0.25], [-2.0, 4.0]], columns=("x", "square")) == [
        " x  square",
        " 1    0.25",
        "-2    4.00",
    ]


def test_large_tensors_are_abbreviated() -> None:
    array = np.arange(32.0 * 64 * 100).reshape(32, 64, 100)
    lines = drawn(array, axes=("b", "s", "d"))
    assert len(lines) < 40
    assert lines[0].startswith("b=0")
    assert any(line.startswith("b=31") for line in lines)
    assert lines[1].split()[:2] == ["0", "1"]
    assert lines[-1].split()[-1] == "204799"
    assert any("…" in line for line in lines)


@settings(deadline=None)
@given(shape=array_shapes(max_dims=5, max_side=20), digits=st.integers(1, 8), width=st.integers(60, 120))
def test_no_line_exceeds_the_width(shape: tuple[int, ...], digits: int, width: int) -> None:
    array = np.random.default_rng(0).normal(size=shape) * 100
    lines = drawn(array, digits, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 600


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_fits_eighty_columns(topic: str) -> None:
    text = render(explained(topic))
    assert max(map(len, text.splitlines())) <= 80
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "{" not in text.replace('f"', "").split("> ")[0]  # every {name} of the words is filled in


@pytest.mark.parametrize("topic", TOPICS)
def test_colors_do_not_change_the_text(topic: str) -> None:
    worked = explained(topic)
    assert render_rich(worked).plain == render(worked)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=80, highlight=False)
    console.print(render_rich(worked), soft_wrap=True)
    assert "\x1b[1m" in stream.getvalue()


def test_the_parts_of_a_step() -> None:
    text = render(explain("rmsnorm", [3.0, -4.0, 0.0], eps=1e-6))
    assert text.startswith("RMSNorm, over ... [d]\nEach row (in a transformer: one token) is")
    assert "\nx = 3  -4   0\nweight = 1  1  1\neps = 1e-06\n" in text
    rms = text[text.index("3. rms") : text.index("4. scaled")].splitlines()
    assert rms[0] == "3. rms"
    assert rms[-5:-2] == [
        "   > rms = torch.sqrt(mean_square + eps)",
        "   2.8868",
        rms[-3],
    ]
    assert rms[-3].startswith("   largest difference from the vector norm / sqrt(d): ")
    assert "   largest difference from torch.nn.RMSNorm: " in text


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (0.0, "largest difference from torch: 0"),
        (6e-8, "largest difference from torch: 6.0e-08"),
        (0.5, "largest difference from torch: 5.0e-01: above tolerance, float32 loses precision on these values"),
        (float("inf"), "largest difference from torch: inf: the values overflow float32"),
    ],
)
def test_a_difference_is_reported(difference: float, words: str) -> None:
    worked = explain("relu2", [1.0])
    step = replace(worked.steps[0], checks=(ReferenceCheck("torch", difference, 1e-5),))
    text = render(replace(worked, steps=(step,)), width=120)
    assert text.splitlines()[-1].strip() == words


def test_nan_is_reported() -> None:
    text = " ".join(render(explain("rmsnorm", [[0.0, 0.0], [3.0, 4.0]], eps=0.0)).split())
    assert text.count("NaN: the result of 0 / 0") == 1
    assert text.index("4. scaled") < text.index("NaN: the result") < text.index("5. result")
    assert "any eps > 0 avoids that" in text
    assert text.count("NaN from an earlier step") == 2  # of the result, and of its RMS
    assert " nan " not in render(explain("rmsnorm", [[0.0, 0.0]], eps=1e-5))
    assert "eps > 0" not in render(explain("relu2", [3e38]))


@pytest.mark.parametrize("topic", ["attention", "block", "residual"])
def test_one_sequence_is_a_batch_of_one(topic: str) -> None:
    text = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert render(explain(topic, text)) == render(explain(topic, [text]))
