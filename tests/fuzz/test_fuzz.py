"""A few fuzz trials of each kind (`make fuzz` runs many), and a check that the fuzzer detects planted faults."""

import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from normscope import cli
from tests.fuzz.arguments import CALLS, COMMANDS, api_calls
from tests.training.forked import start_forked


def fuzz(folder: Path, *arguments: str) -> None:
    process = start_forked(_fuzz, arguments, str(folder / "output"))
    process.join()
    assert process.exitcode == 0, (folder / "output").read_text()


def _fuzz(arguments: Sequence[str], output: str) -> None:
    from tests.fuzz.__main__ import main

    with open(output, "w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        sys.exit(main(arguments))


def test_few_trials(tmp_path: Path) -> None:
    fuzz(tmp_path, "--quick", "--seed", "1", "--trials", "12", "--only", "files", "arguments", "calls", "environment")


def test_every_command_is_in_the_table() -> None:
    assert {name.partition("-")[0] for name in COMMANDS} == set(cli.COMMANDS) - {"studio"}  # a server


def test_every_call_that_is_drawn_is_in_the_table(tmp_path: Path) -> None:
    calls = api_calls(tmp_path)
    assert set(calls) == set(CALLS)
    for function, arguments in calls.values():
        inspect.signature(function).bind(**arguments)  # the names of the arguments are those of today


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 3])
def test_many_trials(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, "--seed", str(seed), "--seconds", "60")


PLANTED = """
import sys, time, os
from pathlib import Path
from tests.fuzz.trial import Trial, run_trial
def say(text, code):
    def act():
        print(text, file=sys.stderr)
        return code
    return act
def kill(): os.abort()
def sleep(): time.sleep(60)
def fail(): raise ZeroDivisionError
judge = lambda result, folder: "harmless"
for act in (say("", 0), say("\\x1b[2J", 2), kill, sleep, fail):
    print(run_trial(Trial("planted", "", act, judge, seconds=0.1), Path("trial"))[0])
print(run_trial(Trial("planted", "", sleep, judge, seconds=0.05, may_be_slow=True), Path("trial"))[0])
"""


def test_fuzzer_detects_planted_faults(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PLANTED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["harmless", "unsafe", "crash", "hang", "traceback", "slow"]
