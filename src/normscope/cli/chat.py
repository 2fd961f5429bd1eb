"""`normscope chat`: chat with a trained model."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from normscope.cli.options import read_arguments
from normscope.cli.sample import GenerationOptions, print_checkpoint_notice
from normscope.errors import ConfigError, NormscopeError
from normscope.generate.config import GenerationConfig

if TYPE_CHECKING:
    from normscope.generate.chat import Conversation

GREETING = "Type /help for commands, /quit or Ctrl-D to exit."
SETTINGS = {
    "/temperature": ("temperature", "sampling temperature, 0 for greedy decoding"),
    "/top-k": ("top_k", "sample from the N most likely tokens, or off"),
    "/top-p": ("top_p", "sample from the top tokens with this total probability, or off"),
    "/min-p": ("min_p", "minimum probability relative to the most likely token, or off"),
    "/seed": ("seed", "random seed"),
    "/tokens": ("max_new_tokens", "maximum number of tokens per reply"),
}
"""Chat command -> generation setting that it shows or changes, and its help."""


@dataclass(frozen=True)
class Chat(GenerationOptions):
    """Chat with a trained model.

    A model with a chat template answers in turns. Others continue the whole text: a model trained on stories continues
    stories. Lines that start with / are commands: see /help.
    """

    max_new_tokens: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--tokens"])] = 100
    """Maximum number of tokens per reply."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Chat, "chat", arguments)
    from normscope.runs.sample import chat

    print_checkpoint_notice(command.source)
    conversation = chat(command.source, checkpoint=command.checkpoint, config=command.config())
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # invalid UTF-8 becomes '?', not a traceback
    print(GREETING)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        if line.strip() in ("/quit", "/exit"):
            return
        try:
            _handle_line(conversation, line)
        except KeyboardInterrupt:  # stops the reply, not the chat
            print()
        except NormscopeError as error:  # invalid input does not end the chat
            print(f"error: {error}", file=sys.stderr)


def _handle_line(conversation: "Conversation", line: str) -> None:
    from normscope.render.streaming import StreamDisplay

    if line.startswith("/"):
        command, _, value = line.partition(" ")
        _run_command(conversation, command, value.strip())
        return
    reply, display = conversation.send(line), StreamDisplay()
    try:
        for piece in reply:
            display.show(piece)
    finally:  # also after an interruption
        display.end()
    for notice in conversation.messages[-1].notices:
        print(f"note: {notice}", file=sys.stderr)


def _run_command(conversation: "Conversation", command: str, value: str) -> None:
    if command in SETTINGS:
        name, _ = SETTINGS[command]
        if value:
            conversation.config = conversation.config.changed(name, value)
        print(f"{name} {conversation.config.shown(name)}")
        return
    if command not in _COMMANDS:
        raise ConfigError(f"unrecognized command {command!r}\nfix: type /help for a list")
    if value:
        raise ConfigError(f"unexpected argument {value!r} for {command}\nfix: {command}")
    _COMMANDS[command](conversation)


def _print_text(conversation: "Conversation") -> None:
    from normscope.render.streaming import print_text

    print_text(conversation.text or "(empty)")


_COMMANDS: dict[str, Callable[["Conversation"], object]] = {
    "/undo": lambda conversation: print(f"removed {conversation.undo().prompt!r}"),
    "/reset": lambda conversation: conversation.reset(),
    "/text": _print_text,
    "/help": lambda conversation: print(help_text(conversation.config)),
}


def help_text(config: GenerationConfig) -> str:
    """List the commands and the current settings."""
    lines = [
        ("/undo", "remove the last message and its reply"),
        ("/reset", "start a new conversation"),
        ("/text", "show the whole conversation"),
        *(
            (f"{command} {'N' if config.kind(name) is int else 'X'}", f"{text} (now {config.shown(name)})")
            for command, (name, text) in SETTINGS.items()
        ),
        ("/help", "show this help"),
        ("/quit", "exit (or Ctrl-D)"),
    ]
    return "\n".join(f"{command:15} {text}" for command, text in lines)
