"""What a model wrote: a terminal gets no control characters of it, a file gets all."""

import sys

import pytest

from normscope.cli.generation_options import shown


def test_a_terminal_is_not_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one\ttwo\nred\x1b[31m\a\b\x0e"
    assert shown(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shown(text) == "one\ttwo\nred�[31m���"
