"""A few trials of each kind, where `make fuzz` runs many; and faults that are planted are found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def fuzz(*arguments: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_trial_is_silent_hangs_or_shows_a_traceback() -> None:
    fuzz("--quick", "--seed", "1", "--trials", "16", "--only", "files", "arguments", "calls", "environment")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 3])
def test_many_trials(seed: int) -> None:
    fuzz("--seed", str(seed), "--seconds", "60")


PLANTED = """
import sys, time, os
from pathlib import Path
from tests.fuzz.trial import Trial, attempt
def say(text, code):
    def act():
        print(text, file=sys.stderr)
        return code
    return act
def kill(): os.abort()
def sleep(): time.sleep(60)
def fail(): raise ZeroDivisionError
right = lambda ended, folder: "harmless"
for act in (say("", 0), say("\\x1b[2J", 2), kill, sleep, fail):
    print(attempt(Trial("planted", "", act, right, seconds=0.5), Path("trial"))[0])
print(attempt(Trial("planted", "", sleep, right, seconds=0.2, may_last=True), Path("trial"))[0])
"""


def test_planted_faults_are_found(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PLANTED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["harmless", "unsafe", "crash", "hang", "traceback", "as asked"]
