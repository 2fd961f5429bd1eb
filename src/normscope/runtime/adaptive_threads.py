"""Threads that are adapted to the load of the machine: the chooser with a clock, a meter and torch's own setting."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, get_args

import torch

from normscope.errors import ConfigError
from normscope.runtime.machine_load import LoadMeter, MachineLoad
from normscope.runtime.openmp_wait import ShortSpin
from normscope.runtime.thread_chooser import TUNING, ThreadChooser, ThreadSuggestion, ThreadTuning

ThreadMode = Literal["adaptive", "fixed"]
MODES: tuple[ThreadMode, ...] = get_args(ThreadMode)
_meter = LoadMeter()  # from when this is imported, so that the first step knows what the machine was like before it


def thread_mode() -> ThreadMode:
    """What `NORMSCOPE_THREADS` says: adaptive, unless told otherwise."""
    chosen = os.environ.get("NORMSCOPE_THREADS", "adaptive")
    for mode in MODES:
        if chosen == mode:
            return mode
    raise ConfigError(f"NORMSCOPE_THREADS={chosen!r} in the environment is not known\nfix: choose {' or '.join(MODES)}")


class AdaptiveThreads:
    """The number of threads for one kind of work, step by step.

    Args:
        most: how many threads to use on an idle machine.
        adapt: False to use that many always, as does `NORMSCOPE_THREADS=fixed`.
        allowed: whether a number of threads may be used at all, because results stay the same.
        meter: measures what other processes use.
        tuning: the constants.
    """

    def __init__(
        self,
        most: int,
        *,
        adapt: bool = True,
        is_allowed: Callable[[int], bool] = lambda threads: True,
        meter: LoadMeter | None = None,
        tuning: ThreadTuning = TUNING,
    ) -> None:
        self.most, self._tuning = most, tuning
        self.adapts = adapt and most > 1 and thread_mode() == "adaptive"
        self._meter, self._waits = _meter if meter is None else meter, ShortSpin()
        self._chooser = ThreadChooser(
            most, self._suggestion() if self.adapts else None, is_allowed=is_allowed, tuning=tuning
        )

    @property
    def threads(self) -> int:
        """How many to use for the next step."""
        return self._chooser.threads

    @property
    def chosen(self) -> int:
        """How many are used apart from trials."""
        return self._chooser.chosen

    @property
    def load(self) -> MachineLoad:
        """What other processes use of the machine, by the last reading."""
        return self._meter.load(self._tuning.load_every)

    def _suggestion(self) -> ThreadSuggestion | None:
        load = self.load
        threads, free_cores = load.threads_for(self.most), load.free_cores
        return None if threads is None or free_cores is None else ThreadSuggestion(threads, free_cores)

    def step(self, seconds: float) -> None:
        """Take note of a step that took so long with `threads` threads."""
        if self.adapts:
            self._chooser.step(seconds, self._suggestion())
            self._waits.set(self._oversubscribed(self.threads))

    def _oversubscribed(self, threads: int) -> bool:
        """Whether so many threads have to wait for other processes."""
        free_cores = self.load.free_cores
        return free_cores is not None and threads > free_cores

    @property
    def is_busy(self) -> bool:
        """Whether other processes are in the way: threads were given up for them, or have to wait for them."""
        return self.adapts and (self.chosen < self.most or self._oversubscribed(self.chosen))

    def release(self) -> None:
        """Let OpenMP's threads wait as they did before; the next step may change it again."""
        self._waits.set(False)

    def reset(self) -> None:
        """Begin with steps that take another time than those before."""
        self._chooser.reset()
        self.resume()

    def resume(self) -> None:
        """Begin with steps like those before, whose times still count: after a `release`, say."""
        if self.adapts:
            self._waits.set(self._oversubscribed(self.threads))

    def notice(self) -> str | None:
        """What to tell a user about the machine's load and what follows from it; None if nothing does."""
        if not self.is_busy:
            return None
        load = self.load
        why = f"the machine is busy ({load})" if load.is_busy else "the machine is busy"
        if self.most > load.cores and not load.is_busy:
            why = f"there are {load.cores} cores for {self.most} threads"
        if self.chosen < self.most:
            return f"{why}: {self.chosen} of {self.most} threads are used while that lasts"
        if self._chooser.fewer_are_not_allowed:
            return f"{why}; fewer threads would change results in their last bits, so all {self.most} stay in use"
        if self._chooser.fewer_were_slower:
            return f"{why}; steps take longer while that lasts, and would take longer still with fewer threads"
        return None


class TorchThreads(AdaptiveThreads):
    """Adapts the number of torch's threads within a `with` statement; after it, torch has as many as before.

    Args:
        adapt, allowed, meter, tuning: as for `AdaptiveThreads`. `is_allowed` may set torch's number of threads.
    """

    def __init__(
        self,
        *,
        adapt: bool = True,
        is_allowed: Callable[[int], bool] = lambda threads: True,
        meter: LoadMeter | None = None,
        tuning: ThreadTuning = TUNING,
    ) -> None:
        super().__init__(torch.get_num_threads(), adapt=adapt, is_allowed=is_allowed, meter=meter, tuning=tuning)

    def __enter__(self) -> Self:
        self.reset()
        self._set(self.threads)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set(self.most)
        self.release()

    def step(self, seconds: float) -> None:
        super().step(seconds)
        self._set(self.threads)

    def _set(self, threads: int) -> None:
        if self.adapts and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
