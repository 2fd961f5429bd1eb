"""The command line: a table of commands, of which only the one that was asked for is imported.

A new command is a line in `COMMANDS` and a file with a function `main(arguments)`, which may return an exit code.
"""

import difflib
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence

from normscope._version import __version__
from normscope.errors import NormscopeError
from normscope.runtime.environment import prepare_environment

COMMANDS = {
    "train": ("normscope.cli.train", "train a GPT on your text, or on the built-in stories"),
    "resume": ("normscope.cli.resume", "go on with a run that was stopped or killed"),
    "sample": ("normscope.cli.sample", "let a trained model write"),
    "chat": ("normscope.cli.chat", "write with a trained model, turn by turn"),
    "doctor": ("normscope.cli.doctor", "what this machine has, and what a run would take"),
    "prepare": ("normscope.cli.prepare", "turn text into tokens, for several runs to share"),
    "report": ("normscope.cli.report", "write a run's report anew"),
    "replay": ("normscope.cli.replay", "see again where a number stopped being finite"),
    "xray": ("normscope.cli.xray", "the signal in every layer of any model, and what is wrong with it"),
    "draw": ("normscope.cli.draw", "draw a block, a whole model, or which cells share one mean"),
    "lab": ("normscope.cli.lab", "put the field's claims about norms, starts and residuals to the test"),
    "compare": ("normscope.cli.compare", "find out which of several models is better on your text"),
    "explain": ("normscope.cli.explain", "work a layer through on numbers, step by step"),
}
"""For each command: the module it lives in, and one line of help."""

SHORT = {"-n": "samples"}
"""The options of one letter, and what each sets."""

WRONG_USE, INTERRUPTED, CLOSED_PIPE = 2, 130, 141  # the exit codes that shells expect: 128 + the signal's number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    prepare_environment()  # before a command imports torch
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the drawing characters shows '?', not a traceback
    try:
        code = _run(given)
        sys.stdout.flush()  # here, where a closed pipe can still be caught
    except NormscopeError as error:
        print(f"error: {_as_typed(str(error), given)}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # after the ^C, where the shell goes on
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more when it ends, and that must not fail in its turn.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return code


def _run(arguments: Sequence[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command == "help" and rest:
        return _run([rest[0], "--help"])
    if command in ("-h", "--help", "help"):
        print(_help())
    elif command == "--version":
        print(f"normscope {__version__}")
    elif command in COMMANDS:
        return importlib.import_module(COMMANDS[command][0]).main(rest) or 0
    else:
        close = difflib.get_close_matches(command, [*COMMANDS, "--version", "--help"], n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"use one of: {', '.join(COMMANDS)}"
        print(f"error: there is no command {command!r}\nfix: {fix}", file=sys.stderr)
        return WRONG_USE
    return 0


def _as_typed(message: str, arguments: Sequence[str]) -> str:
    """The message with settings as the user typed them, and not as Python has them.

    >>> _as_typed("top_p=2.0 must be at most 1", ["sample", "runs/tale", "--top-p", "2"])
    '--top-p 2.0 must be at most 1'
    """
    for option in {word.partition("=")[0] for word in arguments if word.startswith("-")}:
        name = SHORT.get(option, option.removeprefix("--").replace("-", "_"))
        message = re.sub(rf"(?<![\w-]){re.escape(name)}=", f"{option} ", message)
    return message


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {words}" for name, (_, words) in COMMANDS.items())
    return f"""\
usage: normscope COMMAND ...

Transformer blocks that you can read, train and see through.

commands:
{commands}

options:
  -h, --help  this text, as `normscope help`; after a command, its own
  --version   the version"""
