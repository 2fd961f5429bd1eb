"""Numbers and models in words."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.models.config_json import config_to_json
from normscope.models.presets import PRESETS, gpt2
from normscope.models.summary import describe_model
from normscope.render.formatting import format_count, format_duration, printable, quote

seeded = settings(derandomize=True, deadline=None)
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1, "min": 60, "h": 3600, "d": 86400}


@seeded
@given(st.integers(0, 10**14))
def test_a_count_is_near_enough(number: int) -> None:
    value, _, unit = format_count(number).partition(" ")
    assert float(value) * UNITS[unit] == pytest.approx(number, rel=0.006, abs=0.5)
    assert len(format_count(number)) <= 7


@seeded
@given(st.floats(0, 1e7))
def test_a_duration_is_near_enough(seconds: float) -> None:
    parts = re.findall(r"([\d.]+) (s|min|h|d)", format_duration(seconds))
    total = sum(float(value) * UNITS[unit] for value, unit in parts)
    smallest = UNITS[parts[-1][1]]
    assert abs(total - seconds) <= smallest
    assert len(format_duration(seconds)) <= 12


@seeded
@given(st.text(st.characters(exclude_categories=())), st.integers(5, 40))
def test_no_text_gets_through_to_the_terminal(text: str, longest: int) -> None:
    assert all(character == "\n" or character.isprintable() for character in printable(text))
    line = quote(text, longest)
    assert line.isprintable()
    assert len(line) <= longest + 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_known(value: float) -> None:
    assert format_count(value) == format_duration(value) == "?"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_words(name: str) -> None:
    words = describe_model(config_to_json(PRESETS[name](depth=1)))
    assert words.startswith("GPT of 1 block, width 768, ")
    assert "before each branch" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm": None, "wiring": "none"}, "no norms"),
        ({"norm": "rms", "wiring": "sandwich"}, "rms ... [d] before and after each branch"),
        ({"positions": "none"}, "no positions"),
        ({"heads": 1}, "1 head,"),
        ({"smear": True, "value_embeddings": True}, "learned, smear, value embeddings"),
        ({"heads": 4, "kv_heads": 2}, "4 heads (2 KV heads)"),
    ],
)
def test_settings_in_words(changes: dict[str, Any], words: str) -> None:
    assert words in describe_model(config_to_json(gpt2(**changes)))


def test_missing_settings_are_not_spoken_of() -> None:
    assert describe_model({}) == "GPT"
    assert describe_model({"width": 8, "unheard": "of"}) == "GPT, width 8"
