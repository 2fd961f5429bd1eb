"""`normscope chat`: write with a trained model, turn by turn."""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.options import read_arguments
from normscope.cli.writing import Writing, shown
from normscope.errors import ConfigError, NormscopeError
from normscope.generate.conversation import Conversation

HELP = "/undo takes the last turn back, /reset begins anew, /text shows all, /help this, /quit or Ctrl-D ends"


@dataclass(frozen=True)
class Chat(Writing):
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
    print(HELP)
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
    if line == "/undo":
        print(f"took back {talk.undo().said!r}")
    elif line == "/reset":
        talk.reset()
    elif line == "/text":
        print(shown(talk.text) or "nothing was said yet")
    elif line == "/help":
        print(HELP)
    elif line.startswith("/"):
        word = line.split()[0]
        raise ConfigError(f"there is no command {word!r}\nfix: {HELP}")
    else:
        for piece in talk.say(line):
            print(shown(piece), end="", flush=True)
        print()
        for notice in talk.turns[-1].notices:
            print(f"note: {notice}", file=sys.stderr)
