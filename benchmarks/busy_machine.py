"""How much slower are training and decoding while other processes use the cores, with adapted and with fixed threads?

.venv/bin/python benchmarks/busy_machine.py

The load is 0, 1, 2 or 4 busy processes. Under each load the settings are interleaved, each in its own process because
OpenMP reads its settings once: one thread, one per core with several wait policies, and adapted threads as in
normscope's commands. Each turn starts with untimed steps, in which an adapted process detects the load. Results are the
time per step relative to the fastest fixed setting under the same load, medians over the rounds; the target for adapted
threads is at most 1.20.

Run it on an idle machine.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from normscope.runtime.machine_load import usable_cores
from normscope.runtime.openmp import set_env_defaults

Work = Literal["training", "decoding"]
TARGET = 1.20

_COMMON = """
import json, sys, time
from normscope.runtime.openmp import set_env_defaults
if sys.argv[2] == "adapted":
    set_env_defaults()
import numpy as np, torch
from normscope import GPT, gpt2
from normscope.runtime.adaptive_threads import TorchThreads
from normscope.runtime.memory import keep_freed_memory
keep_freed_memory()
if sys.argv[2].isdecimal():
    torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
"""
_WORKS: Mapping[Work, str] = {
    "training": """
from normscope.data.batches import Batches
from normscope.models.presets import preset
from normscope.training.config import TrainConfig
from normscope.training.recipes import recipe
from normscope.training.trainer import Trainer
chosen = recipe("sprint")
config, model = TrainConfig(**chosen.train), GPT(preset(chosen.preset, vocab_size=65, **chosen.model))
tokens = np.random.default_rng(0).integers(65, size=10_000)
trainer = Trainer(model, config, Batches(tokens, model.config.context, config.batch))
max_threads = torch.get_num_threads()
threads = TorchThreads(is_allowed=lambda threads: trainer.is_bitwise_equal(threads, max_threads)).__enter__()
def steps():
    while True:
        trainer.steps_done = 0  # never reach the end of the schedule
        start = time.perf_counter()
        trainer.step()
        threads.step(time.perf_counter() - start)
        yield
""",
    "decoding": """
from normscope.generate.tokens import Generation
model = GPT(gpt2(vocab_size=8192, context=256, depth=6, width=512, heads=8))
def steps():
    while True:
        for _ in Generation(model, [[1]], max_new_tokens=255):
            yield
""",
}
_TURNS = """
work = steps()
def go_on(seconds):
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(work)
        count += 1
    return (time.perf_counter() - start) / count
go_on(0.5)
print("ready", flush=True)
for line in sys.stdin:
    before, timed = json.loads(line)
    go_on(before)
    print(go_on(timed), flush=True)
"""


@dataclass(frozen=True)
class Setting:
    """Settings of a process.

    Args:
        name: label in the table.
        threads: number of threads, or "adapted".
        environment: variables set before torch is loaded.
    """

    name: str
    threads: str
    environment: Mapping[str, str]


def settings() -> list[Setting]:
    every = str(usable_cores())
    return [
        Setting("1 thread", "1", {}),
        Setting(f"{every} threads", every, {}),
        Setting(f"{every} threads, active", every, {"OMP_WAIT_POLICY": "active"}),
        Setting(f"{every} threads, passive", every, {"OMP_WAIT_POLICY": "passive"}),
        *(
            Setting(f"{every} threads, spin {count}", every, {"GOMP_SPINCOUNT": count})
            for count in ("1000", "10000", "100000")
        ),
        Setting("adapted", "adapted", {}),
    ]


class Worker:
    """A process that runs steps on request."""

    def __init__(self, work: Work, setting: Setting) -> None:
        clean = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "MKL_CBWR", "OMP_NUM_THREADS", "NORMSCOPE_THREADS"}
        environment = {name: value for name, value in os.environ.items() if name not in clean}
        mode = "adaptive" if setting.threads == "adapted" else "fixed"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMON + _WORKS[work] + _TURNS, work, setting.threads],
            env={**environment, **setting.environment, "NORMSCOPE_THREADS": mode},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def step_seconds(self, before: float, timed: float) -> float:
        """Mean time per step over `timed` seconds, after `before` untimed seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([before, timed])}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended before its time; its message is above")
        return line


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Run this many busy processes; all of them are stopped at the end."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            # Exits when the parent is gone, even if it was killed.
            count = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
            started.append(subprocess.Popen([sys.executable, "-c", count]))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Arguments:
    """What to measure and for how long."""

    works: tuple[Work, ...] = ("training", "decoding")
    loads: tuple[int, ...] = (0, 1, 2, 4)
    rounds: int = 5
    seconds: float = 2.0
    """Timed seconds per turn."""

    before: float = 2.0
    """Untimed seconds before that."""

    only: tuple[str, ...] = ()
    """Names of the settings to measure (default: all)."""


def measure(work: Work, given: Arguments) -> dict[int, dict[str, float]]:
    """Median time per step under each load, for each setting.

    Every round starts new processes: memory placement changes the time per decoded token by up to 1.6 times for the
    lifetime of a process.
    """
    chosen = [setting for setting in settings() if not given.only or setting.name in given.only]
    times: dict[int, dict[str, list[float]]] = {
        processes: {setting.name: [] for setting in chosen} for processes in given.loads
    }
    for turn in track(range(given.rounds), work, console=Console(stderr=True), transient=True):
        in_turn = chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]
        with ExitStack() as stack:
            workers: dict[str, Worker] = {}
            for setting in in_turn:
                workers[setting.name] = Worker(work, setting)
                stack.callback(workers[setting.name].close)
            for processes in given.loads:
                with load(processes):
                    for name, worker in workers.items():
                        times[processes][name].append(worker.step_seconds(given.before, given.seconds))
    return {
        processes: {name: statistics.median(each) for name, each in of_load.items()}
        for processes, of_load in times.items()
    }


def table(given: Arguments | None = None) -> Table:
    given = Arguments() if given is None else given
    names: Sequence[str] = [setting.name for setting in settings() if not given.only or setting.name in given.only]
    title = f"time per step relative to the fastest fixed setting, {usable_cores()} cores (* more than {TARGET:.2f})"
    shown = Table("work", "load", *names, "fastest: ms per step", title=title, box=None)
    for work in given.works:
        for processes, times in measure(work, given).items():
            fastest = min(seconds for name, seconds in times.items() if name != "adapted")
            ratios = {name: seconds / fastest for name, seconds in times.items()}
            cells = [
                f"{ratio:.2f}{'*' if name == 'adapted' and ratio > TARGET else ''}" for name, ratio in ratios.items()
            ]
            shown.add_row(work, str(processes), *cells, f"{fastest * 1e3:.2f}")
    return shown


if __name__ == "__main__":
    set_env_defaults()
    Console(width=160).print(table(tyro.cli(Arguments)))
