"""`normscope chat`: write with a trained model, turn by turn."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.chat_settings import SETTINGS
from normscope.cli.generation_options import GenerationOptions, StreamDisplay, print_text
from normscope.cli.options import read_arguments
from normscope.errors import ConfigError, NormscopeError
from normscope.generate.chat import Conversation
from normscope.generate.text import TextSettings

GREETING = "/help lists the commands, /quit or Ctrl-D ends"


@dataclass(frozen=True)
class Chat(GenerationOptions):
    """Write with a trained model: what you type is continued, and all of it is remembered.

    A model that was trained on stories continues stories. Lines that begin with / are for the program: see /help.
    """

    tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """How many tokens an answer gets at most."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Chat, "chat", arguments)
    model, tokenizer = command.load()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text become '?', not a traceback
    talk = Conversation(model, tokenizer, command.settings())
    print(GREETING)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        if line in ("/quit", "/exit"):
            return
        try:
            _turn(talk, line)
        except KeyboardInterrupt:  # stops the answer, not the conversation
            print()
        except NormscopeError as error:  # nothing that is typed ends a conversation
            print(f"error: {error}", file=sys.stderr)


def _turn(talk: Conversation, line: str) -> None:
    if line.startswith("/"):
        command, _, value = line.partition(" ")
        _obey(talk, command, value.strip())
        return
    answer, display = talk.send(line), StreamDisplay()
    try:
        for piece in answer:
            display.show(piece)
    finally:  # also what was said before an interruption
        display.flush()
    print()
    for notice in talk.messages[-1].notices:
        print(f"note: {notice}", file=sys.stderr)


def _obey(talk: Conversation, command: str, value: str) -> None:
    if command in SETTINGS:
        setting = SETTINGS[command]
        if value:
            talk.settings = setting.changed(talk.settings, value)
        print(f"{setting.name} {setting.value(talk.settings)}")
        return
    if command not in _COMMANDS:
        raise ConfigError(f"there is no command {command!r}\nfix: /help lists them")
    if value:
        raise ConfigError(f"{command} takes no value, but got {value!r}\nfix: {command} alone")
    _COMMANDS[command](talk)


def _undo(talk: Conversation) -> None:
    print(f"took back {talk.undo().prompt!r}")


def _show_text(talk: Conversation) -> None:
    print_text(talk.text or "nothing was said yet")


def _help(talk: Conversation) -> None:
    print(help_text(talk.settings))


_COMMANDS: dict[str, Callable[[Conversation], None]] = {
    "/undo": _undo,
    "/reset": Conversation.reset,
    "/text": _show_text,
    "/help": _help,
}


def help_text(settings: TextSettings) -> str:
    """All commands, and the settings as they are."""
    lines = [
        ("/undo", "take the last turn back"),
        ("/reset", "begin anew"),
        ("/text", "show all that was said"),
        *((f"{name} {one.metavar}", f"{one.help}; now {one.value(settings)}") for name, one in SETTINGS.items()),
        ("/help", "show this"),
        ("/quit", "end, as Ctrl-D does"),
    ]
    return "\n".join(f"{command:15} {words}" for command, words in lines)
