"""A small run for the tests of the commands, and a command as a user types it."""

from pathlib import Path

import pytest

from normscope.cli import main
from tests.training.small_run import TEXT

SMALL = [
    *("--depth", "2", "--width", "16", "--heads", "2", "--context", "16", "--batch", "4"),
    *("--tokenizer", "characters", "--val-fraction", "0.02"),
    *("--eval-every", "0", "--sample-every", "0", "--save-every", "2", "--steps"),
]
"""Settings of a run that takes no time; the number of steps comes after them."""


def typed(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command of words without blanks in them."""
    return entered(line.split(), capsys)


def entered(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as end:  # help, and what tyro cannot read
        code = end.code if isinstance(end.code, int) else 1
    out, errors = capsys.readouterr()
    return code, out, errors


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command that must be refused."""
    code, _, errors = entered(arguments, capsys)
    assert code == 2
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    return errors


def write_text(folder: Path, name: str = "milk.txt") -> Path:
    path = folder / name
    path.write_text(TEXT)
    return path
