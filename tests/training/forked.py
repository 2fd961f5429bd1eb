"""New processes without the seconds of importing torch: forks of a server that has trained a run and does nothing else.

They have the server's environment variables, its modules and kernels, and the caller's working directory.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import chdir
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.fuzz.trial import reopen_standard_streams


def ensure_warm_server() -> None:
    """Start the server, unless it runs."""
    multiprocessing.set_forkserver_preload(["tests.training.warm_run"])
    with chdir(Path(__file__).parents[2]):  # it looks for `tests` in its working directory, and ignores a failed import
        forkserver.ensure_running()


def start_forked(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """Start a function of a module in a new process."""
    ensure_warm_server()
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    process.start()
    return process


def finish(process: BaseProcess) -> None:
    process.join(200)
    assert process.exitcode == 0


def start_command(words: list[str], output: Path, errors: Path, encoding: str = "utf-8") -> BaseProcess:
    """Start `normscope` with these words in a new process, with its output in files."""
    return start_command_of(_program, words, output, errors, encoding)


def start_command_of(
    program: Callable[[list[str]], None], words: list[str], output: Path, errors: Path, encoding: str = "utf-8"
) -> BaseProcess:
    """Start a program with these words in a new process, with its output in files."""
    return start_forked(_command, program, words, str(output), str(errors), encoding)


def _command(program: Callable[[list[str]], None], words: list[str], output: str, errors: str, encoding: str) -> None:
    for descriptor, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    reopen_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=encoding)  # type: ignore[union-attr]
    program(words)


def _program(words: list[str]) -> None:
    sys.argv = ["normscope", *words]
    from normscope.__main__ import program

    program()
