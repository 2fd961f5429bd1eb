"""The command line: a table of commands, of which only the one that was asked for is imported.

A new command is a line in `COMMANDS` and a file with a function `main(arguments)`, which may return an exit code.
"""

import difflib
import importlib
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from normscope._version import __version__
from normscope.cli.streams import guarded_streams
from normscope.errors import NormscopeError
from normscope.runtime.env_vars import set_env_defaults

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

SHORT_OPTIONS = {"-n": "samples"}
"""The options of one letter, and what each sets."""

EXIT_USAGE, EXIT_IO_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 74, 130, 141
"""The exit codes that shells expect: sysexits' EX_IOERR, and 128 + the number of the signal."""


def program() -> NoReturn:
    """What the `normscope` command runs: `main`, and no traceback if a signal comes while Python starts or ends."""
    _on_interrupt(signal.SIG_DFL)  # ends the process at once: an import that is broken off is no use
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in COMMANDS:
        with suppress(ImportError):  # told by `main`
            importlib.import_module(COMMANDS[command][0])
    _on_interrupt(signal.default_int_handler)
    try:
        code = main()
    except KeyboardInterrupt:  # a second one, while the first was told of
        code = EXIT_INTERRUPTED
    _on_interrupt(signal.SIG_DFL)
    sys.exit(code)


def _on_interrupt(handler: Any) -> None:
    """Handle Ctrl-C, unless it is ignored: so shells start what is to go on in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    set_env_defaults()  # before a command imports torch
    given = sys.argv[1:] if arguments is None else arguments
    with guarded_streams() as out:
        code = _run_safely(given)
        with suppress(BrokenPipeError):
            out.flush()  # here, where it can still be told that this failed
        if isinstance(out.failure, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        if out.failure is not None:
            print(f"error: the output could not be written: {_reason(out.failure)}", file=sys.stderr)
            return code or EXIT_IO_ERROR
        return code


def _run_safely(given: Sequence[str]) -> int:
    """Run a command; what a user or the system did wrong becomes a message and an exit code."""
    try:
        return _run(given)
    except NormscopeError as error:
        print(f"error: {_as_typed(str(error), given)}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # after the ^C, where the shell goes on
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as end:  # after the help
        return end.code if isinstance(end.code, int) else 0
    except (OSError, MemoryError) as error:  # of the machine, at a place where nothing better can be said
        print(f"error: {_reason(error)}", file=sys.stderr)
        return EXIT_IO_ERROR


def _reason(error: OSError | MemoryError) -> str:
    """The system's error as a sentence.

    >>> _reason(OSError(36, "File name too long", "x" * 300))[:60]
    'File name too long: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'
    """
    if isinstance(error, MemoryError):
        return f"there is not enough memory{f': {error}' if str(error) else ''}"
    name = f": {error.filename!s:.200}" if error.filename is not None else ""
    return f"{error.strerror or error or type(error).__name__}{name}"


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
        return EXIT_USAGE
    return 0


def _as_typed(message: str, arguments: Sequence[str]) -> str:
    """The message with settings as the user typed them, and not as Python has them.

    >>> _as_typed("top_p=2.0 must be at most 1", ["sample", "runs/tale", "--top-p", "2"])
    '--top-p 2.0 must be at most 1'
    """
    for option in {word.partition("=")[0] for word in arguments if word.startswith("-")}:
        name = SHORT_OPTIONS.get(option, option.removeprefix("--").replace("-", "_"))
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
