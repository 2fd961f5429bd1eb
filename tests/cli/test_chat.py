"""`normscope chat`: turn by turn, and nothing that is typed ends it but the wish to."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from normscope.cli.chat import HELP
from normscope.generate.conversation import Conversation
from tests.cli.running import entered

Chat = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def chat(trained_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    def chat(typed: bytes, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, what was printed without the prompts, and errors."""
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
        code, out, errors = entered(["chat", str(trained_run), "--tokens", "4", *arguments], capsys)
        return code, out.split("> "), errors

    return chat


def test_an_empty_input_ends_it(chat: Chat) -> None:
    assert chat(b"") == (0, [f"{HELP}\n", "\n"], "")


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_quitting(chat: Chat, word: str) -> None:
    assert chat(f"{word}\nmore\n".encode()) == (0, [f"{HELP}\n", ""], "")


def test_what_is_typed_is_continued_and_remembered(chat: Chat) -> None:
    code, printed, errors = chat(b"7 bot\n on\n/text\n/undo\n/text\n/reset\n/text\n")
    assert (code, errors) == (0, "")
    first, second, text, undone, shorter, reset, nothing = (part.removesuffix("\n") for part in printed[1:8])
    assert text == f"7 bot{first} on{second}"
    assert undone == "took back ' on'"
    assert shorter == f"7 bot{first}"
    assert (reset, nothing) == ("", "nothing was said yet")


def test_mistakes_do_not_end_it(chat: Chat) -> None:
    code, printed, errors = chat("é\n/undo\n/what\n7\n".encode() + b"\xff\n")
    assert code == 0
    assert errors.count("error: ") == 4  # a character, an undo too many, no command, and bytes that are no text
    assert "fix: say something first\n" in errors
    assert f"there is no command '/what'\nfix: {HELP}\n" in errors
    assert len(printed) == 7


def test_an_interruption_ends_the_answer_only(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Conversation, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Conversation, "say", interrupted)
    assert chat(b"7\n8\n") == (0, [f"{HELP}\n", "\n", "\n", "\n"], "")


def test_wrong_settings_are_refused_before_it_begins(chat: Chat) -> None:
    code, printed, errors = chat(b"7\n", "--temperature", "-1")
    assert (code, printed) == (2, [""])
    assert errors.startswith("error: --temperature -1.0")
