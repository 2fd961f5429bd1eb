"""Kills at random moments: a run that was killed and resumed must end with the bits of one that was not."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from normscope.cli import main
from normscope.runs.run import is_run
from tests.fuzz.subjects import trained
from tests.fuzz.trial import Ended, Trial, run_apart

_SETTINGS = (
    "--depth 2 --width 16 --heads 2 --context 16 --batch 4 --tokenizer characters --val-fraction 0.02 --seed 3 "
    "--eval-every 5 --sample-every 0 --save-every 2 --xray-every 4 --steps 12"
)
LONGEST = 1.0
"""Seconds after which a process is killed at the latest."""


class Kills:
    """A run to be killed, and what it comes to if it is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder = folder / "straight"
        folder.mkdir()
        ended = run_apart(self._train, folder, 300)
        if ended.code != 0:
            raise RuntimeError(f"the run that is not killed failed: {ended.errors}")
        self.right = trained(ended, folder)
        shutil.rmtree(folder)

    def _train(self) -> int:
        shutil.copy(self.folder / "milk.txt", "milk.txt")
        return main(["train", "milk.txt", "--out", "made", *_SETTINGS.split()])

    def trial(self, rng: random.Random) -> Trial:
        number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        moments = [rng.random() ** 2 * LONGEST for _ in range(rng.randint(1, 4))]
        words = f"{number.name} after {', '.join(f'{moment:.3f}' for moment in moments)} s"

        def act() -> int:
            for moment in moments:
                _killed(self._go_on, moment, number)
            return self._go_on()

        return Trial(f"killed: {number.name}", words, act, self._judge, 120.0)

    def _go_on(self) -> int:
        if is_run(Path("made")):
            return main(["resume", "made"])
        return self._train()  # killed before there was a run; what it left is no hindrance

    def _judge(self, ended: Ended, folder: Path) -> str:
        if ended.code != 0:
            return "stuck"
        return "harmless" if trained(ended, folder) == self.right else "silent"


def _killed(act: Callable[[], int], seconds: float, number: signal.Signals) -> None:
    """Run a function in another process, and end that after so many seconds."""
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)  # or Python's own work after the fork would be interrupted
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = act()
        finally:
            os._exit(code)
    signal.signal(signal.SIGINT, usual)
    time.sleep(seconds)
    os.kill(process, number)
    os.waitpid(process, 0)
