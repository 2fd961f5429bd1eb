"""What a model wrote: a terminal gets no control characters of it, a file gets all."""

import sys

import pytest

from normscope.render.streaming import without_control_characters


def test_a_terminal_is_not_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one\ttwo\nred\x1b[31m\a\b\x0e"
    assert without_control_characters(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert without_control_characters(text) == "one\ttwo\nred�[31m���"
