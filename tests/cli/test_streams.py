"""Output that cannot be written, pipes that are closed, and texts that a terminal must not obey."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

import pytest
from rich.text import Text

from normscope import cli
from normscope.cli.streams import GuardedStream, guarded_streams
from normscope.render.console import SafeConsole
from normscope.training.loop import train_run
from normscope.training.observers.log_lines import LogLines
from tests.training.small_run import new_run

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\x08\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def started(redirection: str, *arguments: str) -> Iterator[subprocess.CompletedProcess[str]]:
    line = f'"{sys.executable}" -m normscope {" ".join(arguments)} {redirection}'
    yield subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirection", "arguments", "code", "words"),
    [
        (">&-", "--version", 74, "error: could not write to standard output: stream is closed\n"),
        (">/dev/full", "--version", 74, "error: could not write to standard output: No space left on device\n"),
        (">/dev/full", "draw scope '[a] b' --shape 2,2", 74, "error: could not write to standard output: No space"),
        ("2>&-", "banana", 2, ""),
        ("2>/dev/full", "banana", 2, ""),
        (">/dev/full 2>&-", "--help", 74, ""),
        ("<&- >&- 2>&-", "draw --help", 74, ""),
    ],
)
def test_a_stream_that_is_closed_or_full(redirection: str, arguments: str, code: int, words: str) -> None:
    with started(redirection, arguments) as done:
        assert done.returncode == code
        assert done.stderr.startswith(words)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_closed_descriptor_is_not_taken_by_a_file(tmp_path: Path) -> None:
    """Else the image would be file number 1, and whatever is printed would land in it."""
    path = tmp_path / "scope.svg"
    with started("<&- >&-", "draw scope '[a] b' --shape 2,2 --svg", str(path)):
        assert path.read_text().startswith("<svg")
        assert "wrote" not in path.read_text()


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def test_a_run_goes_on_without_a_display_and_stops_saved_without_a_reader(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=12, save_every=0)
    nobody = GuardedStream(cast(TextIO, Broken(BrokenPipeError(32, "Broken pipe"))))
    assert train_run(run, [LogLines(cast(TextIO, nobody))]) == "stopped"
    assert run.checkpoints.last() == 0
    full = GuardedStream(cast(TextIO, Broken(OSError(28, "No space left on device"))))
    assert train_run(run, [LogLines(cast(TextIO, full))]) == "done"
    assert run.checkpoints.last() == 12
    assert full.failure is not None


def test_a_terminal_does_not_obey_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, errors = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", errors)
    with guarded_streams():
        print(EVIL, end="")
        print(EVIL, file=sys.stderr, end="")
        SafeConsole(force_terminal=True, width=99).print(Text(EVIL, style="red"))
    for text in (screen.getvalue(), errors.getvalue()):
        assert not {"\x07", "\x9b", "\u202e", "\x08", "\x00"} & set(text)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
    assert "\x1b[31m" in screen.getvalue()  # the style is ours
    assert "\x1b" not in errors.getvalue()


def test_a_file_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with guarded_streams():
        print(EVIL, end="")
    assert file.getvalue() == EVIL


@pytest.mark.parametrize("command", [["sample"], ["report"], ["xray"], ["resume"], ["draw", "model"], ["train"]])
def test_errors_about_evil_names_are_printable(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "evil\x1b]0;x\x07\u202e"]) == 2
    assert cli.main([*command, os.fsdecode(b"not-\xff-utf8")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(errors)


@pytest.mark.parametrize("name", ["x" * 300, "y/" * 3000])
@pytest.mark.parametrize("command", ["sample {}", "report {}", "resume {}", "train {}", "xray {}", "draw model {}"])
def test_names_that_are_too_long(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.format(name).split()) in (2, 74)
    assert capsys.readouterr().err.startswith("error: ")


def test_an_error_of_the_system_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, words in (
        (OSError(5, "Input/output error", "a/file"), "error: Input/output error: a/file\n"),
        (MemoryError(), "error: out of memory\n"),
    ):

        def fail(_: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(cli, "_run", fail)
        assert cli.main(["one"]) == 74
        assert capsys.readouterr().err == words


SIGNALLED = """
import os, signal, sys
from normscope import cli
def work(_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True: pass
    finally:
        print("cleaned")
        os.kill(os.getpid(), signal.SIGINT)
cli._run = work
sys.argv = ["normscope", "--version"]
cli.program()
"""


def test_two_signals_in_a_row_leave_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned\n", "")


def test_a_signal_while_a_command_is_imported_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "normscope", "draw"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-2, "")


@pytest.mark.parametrize("begun", [["-m", "normscope"], ["-c", "from normscope.__main__ import program; program()"]])
def test_a_signal_while_the_command_line_itself_is_imported_ends_it_quietly(tmp_path: Path, begun: list[str]) -> None:
    (tmp_path / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, *begun], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-2, "")


IN_THE_BACKGROUND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for what it starts with &
from normscope import cli
from normscope.__main__ import program
from normscope.training.stop_signals import StopOnSignal
def work(_):
    os.kill(os.getpid(), signal.SIGINT)
    with StopOnSignal() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        print(stopping.requested)
    return 0
cli._run = work
sys.argv = ["normscope", "--version"]
program()
"""


def test_ctrl_c_is_not_for_what_goes_on_in_the_background() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THE_BACKGROUND], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
