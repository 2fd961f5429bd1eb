"""`normscope explain`: what is printed, and what is refused."""

import json
import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from normscope.cli import main
from normscope.learning.catalog import TOPICS, explain
from normscope.learning.terminal import render
from normscope.learning.topics import FILES
from tests.cli.running import entered, refused


def test_without_a_topic_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["explain"], capsys)
    assert code == 0
    assert all(
        re.search(rf"^  {name} +{re.escape(topic.summary)}$", out, re.MULTILINE) for name, topic in TOPICS.items()
    )


def test_help_names_every_topic_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["explain", "--help"], capsys)
    assert code == 0
    assert all(name in out for name in TOPICS)
    assert all(option in out for option in ("--input", "--eps", "--groups", "--heads"))


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert entered(["explain", "rmsnorm"], capsys) == (0, render(explain("rmsnorm")) + "\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["--input", "-3,4,0"], ["--input=-3,4,0"], ["--input", "[-3, 4, 0]", "--eps", "1e-6"]],
)
def test_numbers_of_ones_own(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = entered(["explain", "rmsnorm", *arguments], capsys)
    assert (code, errors) == (0, "")
    settings = {"eps": 1e-6} if "--eps" in arguments else {}
    assert out == render(explain("rmsnorm", [-3.0, 4.0, 0.0], **settings)) + "\n"
    assert "-1.0392   1.3856   0.0000" in out


def test_a_file_and_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = np.arange(24.0).reshape(2, 6, 2)
    np.save(tmp_path / "x.npy", array)
    code, out, _ = entered(["explain", "groupnorm", "--input", str(tmp_path / "x.npy"), "--groups", "3"], capsys)
    assert code == 0
    assert out == render(explain("groupnorm", array, groups=3)) + "\n"


def test_heads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["explain", "attention", "--heads", "4"], capsys)
    assert code == 0
    assert "heads = 4" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["layernrom"], "there is no topic 'layernrom'\nfix: did you mean 'layernorm'?"),
        (["layernorm", "--input", "rubbish"], "'rubbish' is neither numbers nor a .npy file\nfix: "),
        (["layernorm", "--input", "[[1, 2], [3]]"], "ragged nested lists"),
        (["layernorm", "--input", "no.npy"], "there is no file no.npy\nfix: "),
        (["attention", "--input", "1,2"], "attention expects a tensor of 3 dimensions, but got 1"),
        (["groupnorm", "--groups", "3"], "fix: --groups with one of 1, 2, 4"),
        (["mlp", "--heads", "3"], "mlp has no option heads"),
    ],
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(["explain", *arguments], capsys)


def read_all(terminal: int) -> bytes:
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    return shown


def test_in_a_terminal_there_are_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    reading, writing = pty.openpty()
    with ThreadPoolExecutor() as reader:  # a terminal that nobody reads is soon full
        shown = reader.submit(read_all, reading)
        with open(writing, "w") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            assert main(["explain", "relu2"]) == 0
    os.close(reading)
    text = shown.result().decode().replace("\r\n", "\n")
    assert "\x1b[1;36m1. relu" in text
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == render(explain("relu2")) + "\n"


def test_the_names_that_help_and_completion_show_are_those_of_the_topics() -> None:
    assert list(FILES) == list(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_json(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["explain", topic, "--json"], capsys)
    explained = json.loads(out)
    assert code == 0
    assert [step["code"] for step in explained["steps"]] == [step.code for step in explain(topic).steps]
