"""Odd terminal sizes and types, closed, full or broken streams, and missing environment variables."""

import fcntl
import io
import os
import pty
import random
import shutil
import struct
import sys
import termios
import traceback
from collections.abc import Callable
from pathlib import Path

from normscope.cli import main
from tests.fuzz.trial import ProcessResult, Trial, reopen_standard_streams

COMMANDS = (
    *("--help", "train --help", "banana", "explain rmsnorm", "draw scope [a]b --shape 2,3", "draw model --preset gpt2"),
    *("sample run --tokens 4", "sample run --tokens 4 -n 2", "report run", "xray run", "xray nanochat --depth 1"),
    "train milk.txt --out made --depth 1 --width 16 --heads 1 --context 16 --tokenizer characters --steps 2",
    "resume run",
)
SIZES = (0, 1, 2, 5, 20, 40, 80, 1000)
TERMS = ("dumb", "xterm-256color", "linux", "unknown", "")
STREAMS = ("closed", "full", "no reader", "ascii", "latin-1")


def environment_trial(rng: random.Random, folder: Path) -> Trial:
    line, term, columns, rows = (
        rng.choice(COMMANDS),
        rng.choice(TERMS),
        rng.choice(SIZES),
        rng.choice(SIZES),
    )
    stream = rng.choice(STREAMS) if rng.random() < 0.5 else None
    number = rng.choice([1, 2])
    unset = [name for name in ("HOME", "LANG", "PATH", "TMPDIR", "USER") if rng.random() < 0.5]
    how = f"stream {number} {stream}" if stream else f"terminal {term!r} of {columns} x {rows}"

    def act() -> int:
        shutil.copy(folder / "milk.txt", "milk.txt")
        shutil.copytree(folder / "run", "run")
        os.environ["TERM"] = term
        for name in unset:
            os.environ.pop(name, None)
        if stream is None:
            return _on_terminal(lambda: main(line.split()), columns, rows)
        _break_stream(stream, number)
        return main(line.split())

    description = f"{how}, without {unset}: {line}"
    return Trial(
        "streams" if stream else "terminals",
        description,
        act,
        lambda result, _: _judge(result, stream, number, line),
        60.0,
    )


def _judge(result: ProcessResult, stream: str | None, number: int, line: str) -> str:
    """If stdout is lost, the exit code must say so; a lost stderr is ignored."""
    usage_error = line == "banana"
    lost = {"closed": 74, "full": 74, "no reader": 141}.get(stream or "", 0) if number == 1 and not usage_error else 0
    expected = (2,) if usage_error else (lost,) if lost else (0, 1)
    if "\x1b]" in result.errors:
        return "unsafe"
    return "harmless" if result.code in expected else "traceback"


def _break_stream(stream: str, number: int) -> None:
    name = {1: "stdout", 2: "stderr"}[number]
    if stream == "closed":
        os.close(number)
        setattr(sys, name, None)
        return
    if stream in ("ascii", "latin-1"):
        setattr(sys, name, io.TextIOWrapper(os.fdopen(os.dup(number), "wb"), encoding=stream))
        return
    if stream == "full":
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    os.dup2(writing, number)
    reopen_standard_streams()


def _on_terminal(act: Callable[[], int], columns: int, rows: int) -> int:
    """Run a function on a pseudo-terminal of this size; print its output to stderr if it failed."""
    process, screen = pty.fork()
    if process == 0:
        code = 70
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            reopen_standard_streams()
            code = act()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    shown = b""
    while True:
        try:
            piece = os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code not in (0, 1, 2) or b"Traceback" in shown:
        print(shown.decode(errors="replace").replace("\x1b", "<ESC>").replace("\r", ""), file=sys.stderr)
    return code
