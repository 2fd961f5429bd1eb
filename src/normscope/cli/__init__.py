"""The command line: a table of commands; only the module of the given command is imported.

To add a command, add a line to `COMMANDS` and a module with `main(arguments)`, which may return an exit code. Its
options are a dataclass with the capitalized name of the command (`Train`), or one per subcommand in `SUBCOMMANDS`: the
completion scripts look for these names.

A command imports what needs torch in its function, after its arguments are parsed: help, completion and argument errors
don't wait for it (`tests/cli/test_startup.py`).
"""

import importlib
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from normscope._version import __version__
from normscope.checks import did_you_mean
from normscope.cli.streams import guarded_streams
from normscope.errors import NormscopeError, RankError
from normscope.runtime import torchrun
from normscope.runtime.openmp import set_env_defaults

COMMANDS = {
    "train": ("normscope.cli.train", "Train a GPT on your text, or on the built-in stories"),
    "resume": ("normscope.cli.resume", "Continue an interrupted run, or train a finished one longer"),
    "sample": ("normscope.cli.sample", "Generate text from a trained model"),
    "chat": ("normscope.cli.chat", "Chat with a trained model"),
    "import": ("normscope.cli.import_model", "Import a checkpoint of another tool as a run"),
    "export": ("normscope.cli.export", "Export a trained model, as one HTML page that runs it"),
    "runs": ("normscope.cli.runs", "List the runs in a folder"),
    "studio": ("normscope.cli.studio", "Open the local web interface"),
    "report": ("normscope.cli.report", "Write the HTML report of a run"),
    "replay": ("normscope.cli.replay", "Reproduce the batch that produced a NaN or Inf"),
    "prepare": ("normscope.cli.prepare", "Tokenize text once, to share between runs"),
    "doctor": ("normscope.cli.doctor", "Show the hardware, and measure the time and memory of a config"),
    "plan": ("normscope.cli.plan", "Plan training on many GPUs: memory, messages and time of a step"),
    "xray": ("normscope.cli.xray", "Diagnose a model: activations and gradients per layer"),
    "diff": ("normscope.cli.diff", "Compare two models: structure, weights, tokenizers and behavior"),
    "draw": ("normscope.cli.draw", "Draw a scope, a block or a whole model"),
    "lab": ("normscope.cli.lab", "Test published claims about norms, initialization and residuals"),
    "compare": ("normscope.cli.compare", "Find out which model variant is better on your text"),
    "explain": ("normscope.cli.explain", "Explain a layer step by step, with numbers"),
    "completion": ("normscope.cli.completion", "Print a shell completion script"),
}
"""Command -> (module, one-line help)."""

ALIASES = {"-n": "samples", "--tokens": "max_new_tokens"}
"""Options whose name differs from the setting's."""

EXIT_BUG, EXIT_USAGE, EXIT_IO_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 74, 130, 141
"""Exit codes: a traceback, usage error, EX_IOERR of sysexits.h, and 128 + the signal number for SIGINT and SIGPIPE."""


def program() -> NoReturn:
    """Entry point of the `normscope` command: `main`, without a traceback if Ctrl-C comes during startup or exit."""
    _on_interrupt(signal.SIG_DFL)  # during imports, exit immediately
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in COMMANDS:
        with suppress(ImportError):  # `main` reports it
            importlib.import_module(COMMANDS[command][0])
    _on_interrupt(signal.default_int_handler)
    torchrun.stop_with_launcher()
    try:
        code = main()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first is being handled
        code = EXIT_INTERRUPTED
    except Exception:
        if not torchrun.is_launched():
            raise
        print(f"{torchrun.rank_label()}{traceback.format_exc()}", file=sys.stderr)
        code = EXIT_BUG
    _on_interrupt(signal.SIG_DFL)
    if code and torchrun.is_launched():
        torchrun.exit_at_once(code)
    sys.exit(code)


def _on_interrupt(handler: Any) -> None:
    """Set the handler of Ctrl-C, unless the shell set it to be ignored, as for background jobs."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    set_env_defaults()  # before a command imports torch
    given = sys.argv[1:] if arguments is None else arguments
    with guarded_streams() as out:
        code = _run_safely(given)
        with suppress(BrokenPipeError):
            out.flush()  # here, where a failure can still be reported
        if isinstance(out.failure, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        if out.failure is not None:
            print(f"error: could not write to standard output: {_reason(out.failure)}", file=sys.stderr)
            return code or EXIT_IO_ERROR
        return code


def _run_safely(given: Sequence[str]) -> int:
    """Run a command; turn user and system errors into a message and an exit code."""
    try:
        return _run(given)
    except NormscopeError as error:
        if torchrun.shows(error):
            # In one piece, between those of other ranks.
            print(f"{torchrun.rank_label()}error: {_as_typed(str(error), given)}\n", end="", file=sys.stderr)
        if isinstance(error, RankError) and error.is_echo:
            torchrun.wait_for_report()
        return EXIT_USAGE
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # start the shell prompt on a new line after ^C
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as end:  # after --help
        return end.code if isinstance(end.code, int) else 0
    except (OSError, MemoryError) as error:  # system errors without a more specific message
        print(f"{torchrun.rank_label()}error: {_reason(error)}", file=sys.stderr)
        return EXIT_IO_ERROR


def _reason(error: OSError | MemoryError) -> str:
    """Format an error of the operating system.

    >>> _reason(OSError(36, "File name too long", "x" * 300))[:60]
    'File name too long: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'
    """
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    name = f": {error.filename!s:.200}" if error.filename is not None else ""
    return f"{error.strerror or error or type(error).__name__}{name}"


def _run(arguments: Sequence[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command == "help" and rest:
        return _run([rest[0], "--help"])
    if command in ("-h", "--help", "help"):
        print(_help())
    elif command in ("-V", "--version"):
        print(f"normscope {__version__}")
    elif command in COMMANDS:
        return importlib.import_module(COMMANDS[command][0]).main(rest) or 0
    else:
        fix = did_you_mean(command, [*COMMANDS, "--version", "--help"], f"use one of: {', '.join(COMMANDS)}")
        print(f"error: unrecognized command {command!r}\nfix: {fix}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def _as_typed(message: str, arguments: Sequence[str]) -> str:
    """Rewrite Python parameter names in a message as the options that the user typed.

    >>> _as_typed("top_p=2.0 must be at most 1", ["sample", "runs/tale", "--top-p", "2"])
    '--top-p 2.0 must be at most 1'
    """
    for option in {word.partition("=")[0] for word in arguments if word.startswith("-")}:
        name = ALIASES.get(option, option.removeprefix("--").replace("-", "_"))
        message = re.sub(rf"(?<![\w-]){re.escape(name)}=", f"{option} ", message)
    return message


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return f"""\
Usage: normscope COMMAND [OPTIONS]

Train, generate from and inspect transformers built from readable blocks.

Commands:
{commands}

Options:
  -h, --help     Show this help
  -V, --version  Show the version

Use `normscope COMMAND --help` for the options of a command."""
