"""The `normscope` command: help, version, usage errors and exit codes."""

import importlib
import os
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from normscope import cli
from normscope._version import __version__
from normscope.errors import ConfigError
from tests.cli.running import typed


def command(monkeypatch: pytest.MonkeyPatch, raises: BaseException | None = None) -> list[list[str]]:
    """Make `one` the only command; returns the calls it gets."""
    calls: list[list[str]] = []

    def main(arguments: list[str]) -> None:
        calls.append(arguments)
        if raises is not None:
            raise raises

    monkeypatch.setattr(cli, "COMMANDS", {"one": ("somewhere.one", "do one thing")})
    monkeypatch.setitem(sys.modules, "somewhere", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "somewhere.one", SimpleNamespace(main=main))
    return calls


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: normscope COMMAND [OPTIONS]\n")
    assert all(f"  {name}" in out and words in out for name, (_, words) in cli.COMMANDS.items())


def test_help_of_a_command_is_the_commands_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = command(monkeypatch)
    assert cli.main(["help", "one"]) == 0
    assert calls == [["--help"]]
    assert cli.main(["help", "two"]) == 2


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_every_command_is_for_users(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        cli.main(["help", name])
    out = capsys.readouterr().out
    assert f"normscope {name}" in out
    assert "type: ignore" not in out  # tyro would show the comments of fields


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"normscope {__version__}\n"


def test_a_command_gets_the_arguments_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = command(monkeypatch)
    assert cli.main(["one", "two", "--three"]) == 0
    assert calls == [["two", "--three"]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("onn", "error: unrecognized command 'onn'\nfix: did you mean 'one'?\n"),
        ("xyz", "error: unrecognized command 'xyz'\nfix: use one of: one\n"),
        ("--versoin", "error: unrecognized command '--versoin'\nfix: did you mean '--version'?\n"),
        ("--svg", "error: unrecognized command '--svg'\nfix: use one of: one\n"),
    ],
)
def test_unknown_command(
    wrong: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch)
    assert cli.main([wrong]) == 2
    assert capsys.readouterr().err == message


def test_a_users_mistake_is_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, raises=ConfigError("two things\nfix: one thing"))
    assert cli.main(["one"]) == 2
    assert capsys.readouterr().err == "error: two things\nfix: one thing\n"


def test_an_interruption_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, raises=KeyboardInterrupt())
    assert cli.main(["one"]) == 130
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["one"]) == 130
    assert capsys.readouterr() == ("\n", "")  # the shell goes on below the ^C


def test_settings_are_named_as_they_were_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, raises=ConfigError("top_p=2.0 and no_top_p=1 and depth=3 are wrong\nfix: top_p=0.95"))
    assert cli.main(["one", "--top-p=2"]) == 2
    assert capsys.readouterr().err == "error: --top-p 2.0 and no_top_p=1 and depth=3 are wrong\nfix: --top-p 0.95\n"


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, raises=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["one"])


def test_every_command_can_be_imported() -> None:
    for module, words in cli.COMMANDS.values():
        assert callable(importlib.import_module(module).main)
        assert words


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_help_imports_no_command_and_nothing_heavy() -> None:
    done = run(
        "import sys; from normscope.cli import main; main(['--help'])\n"
        "print(sorted(sys.modules.keys() & {'torch', 'numpy', 'rich', 'tyro', 'normscope.cli.draw'}))"
    )
    assert done.stdout.endswith("[]\n"), done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does, and here before the first word
    code = "import sys; from normscope.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # with a buffer, as users have it, the fault shows up late
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_the_characters_gets_others() -> None:
    done = run(
        "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='ascii')\n"
        "from normscope.cli import main; sys.exit(main(['draw', 'scope', '[d]', '--shape', '2']))"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "? a a ?" in done.stdout


def test_python_m() -> None:
    done = subprocess.run([sys.executable, "-m", "normscope", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unrecognized command 'nothing'\n")


def test_help_in_a_terminal_of_a_few_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tyro lays out nothing in fewer than ten columns, and goes on trying."""
    monkeypatch.setenv("COLUMNS", "3")
    code, out, _ = typed("prepare --help", capsys)
    assert code == 0
    assert "--tokenizer" in out
