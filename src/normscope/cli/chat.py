"""`normscope chat`: chat with a trained model."""

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
from normscope.generate.config import GenerationConfig

GREETING = "Type /help for commands, /quit or Ctrl-D to exit."


@dataclass(frozen=True)
class Chat(GenerationOptions):
    """Chat with a trained model.

    The model continues the whole conversation. A model trained on stories continues stories. Lines that start with /
    are commands: see /help.
    """

    tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """Maximum number of tokens per reply."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Chat, "chat", arguments)
    model, tokenizer = command.load()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # invalid UTF-8 becomes '?', not a traceback
    conversation = Conversation(model, tokenizer, command.config())
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
            _handle_line(conversation, line)
        except KeyboardInterrupt:  # stops the reply, not the chat
            print()
        except NormscopeError as error:  # invalid input does not end the chat
            print(f"error: {error}", file=sys.stderr)


def _handle_line(conversation: Conversation, line: str) -> None:
    if line.startswith("/"):
        command, _, value = line.partition(" ")
        _run_command(conversation, command, value.strip())
        return
    reply, display = conversation.send(line), StreamDisplay()
    try:
        for piece in reply:
            display.show(piece)
    finally:  # also after an interruption
        display.flush()
    print()
    for notice in conversation.messages[-1].notices:
        print(f"note: {notice}", file=sys.stderr)


def _run_command(conversation: Conversation, command: str, value: str) -> None:
    if command in SETTINGS:
        setting = SETTINGS[command]
        if value:
            conversation.config = setting.changed(conversation.config, value)
        print(f"{setting.name} {setting.value(conversation.config)}")
        return
    if command not in _COMMANDS:
        raise ConfigError(f"unrecognized command {command!r}\nfix: type /help for a list")
    if value:
        raise ConfigError(f"unexpected argument {value!r} for {command}\nfix: {command}")
    _COMMANDS[command](conversation)


def _undo(conversation: Conversation) -> None:
    print(f"removed {conversation.undo().prompt!r}")


def _show_text(conversation: Conversation) -> None:
    print_text(conversation.text or "(empty)")


def _help(conversation: Conversation) -> None:
    print(help_text(conversation.config))


_COMMANDS: dict[str, Callable[[Conversation], None]] = {
    "/undo": _undo,
    "/reset": Conversation.reset,
    "/text": _show_text,
    "/help": _help,
}


def help_text(config: GenerationConfig) -> str:
    """List the commands and the current settings."""
    lines = [
        ("/undo", "remove the last message and its reply"),
        ("/reset", "start a new conversation"),
        ("/text", "show the whole conversation"),
        *((f"{name} {one.metavar}", f"{one.help} (now {one.value(config)})") for name, one in SETTINGS.items()),
        ("/help", "show this help"),
        ("/quit", "exit (or Ctrl-D)"),
    ]
    return "\n".join(f"{command:15} {text}" for command, text in lines)
