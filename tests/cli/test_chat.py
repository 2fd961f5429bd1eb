"""`normscope chat`: turn by turn, and nothing that is typed ends it but the wish to."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from normscope.cli.chat import GREETING
from normscope.generate.chat import Conversation, Message
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
    assert chat(b"") == (0, [f"{GREETING}\n", "\n"], "")


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_quitting(chat: Chat, word: str) -> None:
    assert chat(f"{word}\nmore\n".encode()) == (0, [f"{GREETING}\n", ""], "")


def test_what_is_typed_is_continued_and_remembered(chat: Chat) -> None:
    code, printed, errors = chat(b"7 bot\n on\n/text\n/undo\n/text\n/reset\n/text\n")
    assert (code, errors) == (0, "")
    first, second, text, undone, shorter, reset, nothing = (part.removesuffix("\n") for part in printed[1:8])
    assert text == f"7 bot{first} on{second}"
    assert undone == "removed ' on'"
    assert shorter == f"7 bot{first}"
    assert (reset, nothing) == ("", "(empty)")


def test_mistakes_do_not_end_it(chat: Chat) -> None:
    code, printed, errors = chat("é\n/undo\n/what\n7\n".encode() + b"\xff\n")
    assert code == 0
    assert errors.count("error: ") == 4  # a character, an undo too many, no command, and bytes that are no text
    assert "fix: send a message first\n" in errors
    assert "unrecognized command '/what'\nfix: type /help for a list\n" in errors
    assert len(printed) == 7


def test_an_interruption_ends_the_answer_only(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Conversation, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Conversation, "send", interrupted)
    assert chat(b"7\n8\n") == (0, [f"{GREETING}\n", "\n", "\n", "\n"], "")


def test_a_setting_is_shown_and_changed(chat: Chat) -> None:
    typed = b"/temperature\n/temperature 0.25\n/temperature\n/seed 7\n/top-k 5\n/top-k off\n/help\n"
    code, printed, errors = chat(typed)
    assert (code, errors) == (0, "")
    assert printed[1:7] == [
        "temperature 0.8\n",
        "temperature 0.25\n",
        "temperature 0.25\n",
        "seed 7\n",
        "top_k 5\n",
        "top_k off\n",
    ]
    for words in ("/undo ", "/reset ", "/text ", "/quit ", "/temperature X", "now 0.25)\n", "now 7)\n", "now 4)\n"):
        assert words in printed[7]


def test_a_changed_setting_changes_the_answer(chat: Chat) -> None:
    """Another seed says something else, the same one says the same again, and one token is one character here."""
    typed = b"/tokens 12\n7\n/undo\n/seed 1\n7\n/undo\n/seed 0\n7\n/tokens 1\n7\n"
    code, printed, _ = chat(typed, "--temperature", "2")
    assert code == 0
    first, other, again, short = (printed[place].removesuffix("\n") for place in (2, 5, 8, 10))
    assert first == again != other
    assert len(short) <= 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/temperature hot", "temperature must be a number, but got 'hot'\nfix: temperature 0.8\n"),
        ("/temperature -1", "temperature=-1.0 must be a finite number, 0 or above\nfix: "),
        ("/temperature nan", "temperature=nan must be"),
        ("/temperature off", "temperature must be a number, but got 'off'"),
        ("/seed 1.5", "seed must be an integer, but got '1.5'"),
        ("/seed -1", "seed=-1"),
        ("/top-k 0", "top_k=0"),
        ("/top-k few", "top_k must be an integer or off, but got 'few'"),
        ("/top-p 2", "top_p=2.0 must be above 0 and at most 1"),
        ("/tokens 0", "max_new_tokens=0"),
        ("/undo all", "unexpected argument 'all' for /undo"),
        ("/", "unrecognized command '/'"),
    ],
)
def test_a_wrong_value_is_refused_and_changes_nothing(chat: Chat, line: str, message: str) -> None:
    code, printed, errors = chat(f"/help\n{line}\n/help\n".encode())
    assert code == 0
    assert errors.startswith(f"error: {message}")
    assert printed[1] == printed[3]


def test_a_terminal_gets_whole_words(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "10")

    def send(self: Conversation, text: str) -> Iterator[str]:
        self.messages.append(Message(text, "", (), "stop_token", ()))
        return iter(["once u", "pon a ti", "me it was a story"])

    monkeypatch.setattr(Conversation, "send", send)
    code, printed, _ = chat(b"7\n")
    assert (code, printed[1]) == (0, "once upon\na time it\nwas a\nstory\n")


def test_wrong_settings_are_refused_before_it_begins(chat: Chat) -> None:
    code, printed, errors = chat(b"7\n", "--temperature", "-1")
    assert (code, printed) == (2, [""])
    assert errors.startswith("error: --temperature -1.0")
