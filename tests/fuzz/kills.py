"""Kills at random times: a killed and resumed run must end bitwise identical to an uninterrupted one."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from normscope.cli import main
from normscope.runs.run import is_run
from tests.fuzz.targets import trained
from tests.fuzz.trial import ProcessResult, Trial, run_forked

_SETTINGS = (
    "--depth 2 --width 16 --heads 2 --context 16 --batch 4 --tokenizer characters --val-fraction 0.02 --seed 3 "
    "--eval-every 5 --sample-every 0 --save-every 2 --xray-every 4 --steps 12"
)
MAX_DELAY = 1.0
"""Longest delay before a kill, in seconds."""


class KillTrials:
    """Kills a run repeatedly and compares it with an uninterrupted one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder = folder / "uninterrupted"
        folder.mkdir()
        result = run_forked(self._train, folder, 300)
        if result.code != 0:
            raise RuntimeError(f"the uninterrupted run failed: {result.errors}")
        self.expected = trained(result, folder)
        shutil.rmtree(folder)

    def _train(self) -> int:
        shutil.copy(self.folder / "milk.txt", "milk.txt")
        return main(["train", "milk.txt", "--out", "made", *_SETTINGS.split()])

    def trial(self, rng: random.Random) -> Trial:
        number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        delays = [rng.random() ** 2 * MAX_DELAY for _ in range(rng.randint(1, 4))]
        description = f"{number.name} after {', '.join(f'{delay:.3f}' for delay in delays)} s"

        def act() -> int:
            for delay in delays:
                _run_and_kill(self._train_or_resume, delay, number)
            return self._train_or_resume()

        return Trial(f"killed: {number.name}", description, act, self._judge, 120.0)

    def _train_or_resume(self) -> int:
        if is_run(Path("made")):
            return main(["resume", "made"])
        return self._train()  # killed before the run was created

    def _judge(self, result: ProcessResult, folder: Path) -> str:
        if result.code != 0:
            return "stuck"
        return "harmless" if trained(result, folder) == self.expected else "silent"


def _run_and_kill(act: Callable[[], int], seconds: float, number: signal.Signals) -> None:
    """Run a function in a forked process and send it the signal after some seconds."""
    previous = signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # otherwise Python's own work after the fork could be interrupted
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = act()
        finally:
            os._exit(code)
    signal.signal(signal.SIGINT, previous)
    time.sleep(seconds)
    os.kill(process, number)
    os.waitpid(process, 0)
