"""Adapt the number of threads to the load of the machine."""

import os
from collections.abc import Callable
from typing import Literal, Self, get_args

import torch

from normscope.errors import ConfigError
from normscope.runtime.machine_load import LoadMeter, MachineLoad
from normscope.runtime.openmp import ShortSpin
from normscope.runtime.thread_chooser import TUNING, ThreadChooser, ThreadSuggestion

ThreadMode = Literal["adaptive", "fixed"]
MODES: tuple[ThreadMode, ...] = get_args(ThreadMode)
_meter = LoadMeter()  # created on import, so that the first step already has a reading


def thread_mode() -> ThreadMode:
    """The value of `NORMSCOPE_THREADS`; adaptive by default."""
    chosen = os.environ.get("NORMSCOPE_THREADS", "adaptive")
    for mode in MODES:
        if chosen == mode:
            return mode
    raise ConfigError(f"NORMSCOPE_THREADS={chosen!r} is not a valid value\nfix: choose {' or '.join(MODES)}")


class AdaptiveThreads:
    """Chooses the number of threads for repeated steps of one kind of work.

    Args:
        max_threads: Number of threads on an idle machine; None for torch's.
        adapt: False always uses `max_threads`, like `NORMSCOPE_THREADS=fixed`.
        is_allowed: Whether a number of threads may be used, for example because the results stay the same.
        meter: Measures the load of other processes.
    """

    def __init__(
        self,
        max_threads: int | None = None,
        *,
        adapt: bool = True,
        is_allowed: Callable[[int], bool] = lambda threads: True,
        meter: LoadMeter | None = None,
    ) -> None:
        self.max_threads = torch.get_num_threads() if max_threads is None else max_threads
        self.is_adaptive = adapt and self.max_threads > 1 and thread_mode() == "adaptive"
        self._meter, self._short_spin = _meter if meter is None else meter, ShortSpin()
        suggestion = self._suggestion() if self.is_adaptive else None
        self._chooser = ThreadChooser(self.max_threads, suggestion, is_allowed=is_allowed)

    @property
    def threads(self) -> int:
        """Number of threads for the next step."""
        return self._chooser.threads

    @property
    def chosen(self) -> int:
        """Number of threads outside of trials."""
        return self._chooser.chosen

    @property
    def load(self) -> MachineLoad:
        """Load of other processes at the last reading."""
        return self._meter.load(TUNING.load_every)

    def _suggestion(self) -> ThreadSuggestion | None:
        load = self.load
        threads, free_cores = load.threads_for(self.max_threads), load.free_cores
        return None if threads is None or free_cores is None else ThreadSuggestion(threads, free_cores)

    def step(self, seconds: float) -> None:
        """Record the time of a step that used `threads` threads."""
        if self.is_adaptive:
            self._chooser.step(seconds, self._suggestion())
            self.resume()

    def _oversubscribed(self, threads: int) -> bool:
        """Whether there are more threads than free cores."""
        free_cores = self.load.free_cores
        return free_cores is not None and threads > free_cores

    @property
    def is_busy(self) -> bool:
        """Whether other processes reduce the number of threads, or make threads wait."""
        return self.is_adaptive and (self.chosen < self.max_threads or self._oversubscribed(self.chosen))

    def release(self) -> None:
        """Restore OpenMP's default spinning until the next step."""
        self._short_spin.set(False)

    def reset(self) -> None:
        """Forget the step times: the next steps do different work."""
        self._chooser.reset()
        self.resume()

    def resume(self) -> None:
        """Continue after `release` with the same work, whose step times still count."""
        if self.is_adaptive:
            self._short_spin.set(self._oversubscribed(self.threads))

    def notice(self) -> str | None:
        """A notice about the load of the machine and its effect; None if there is nothing to report."""
        if not self.is_busy:
            return None
        load = self.load
        reason = f"the machine is busy ({load})" if load.is_busy else "the machine is busy"
        if self.max_threads > load.cores and not load.is_busy:
            reason = f"{self.max_threads} threads share {load.cores} cores"
        if self.chosen < self.max_threads:
            return f"{reason}: using {self.chosen} of {self.max_threads} threads for now"
        if self._chooser.fewer_are_not_allowed:
            return (
                f"{reason}: keeping all {self.max_threads} threads, since fewer would change the last bits of results"
            )
        if self._chooser.fewer_were_slower:
            return f"{reason}: steps are slower for now, and would be even slower with fewer threads"
        return None


class TorchThreads(AdaptiveThreads):
    """Context manager that adapts torch's number of threads, and restores it at the end.

    `is_allowed` may change torch's number of threads.
    """

    def __enter__(self) -> Self:
        self.reset()
        self._set(self.threads)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self.max_threads)
        self.release()

    def step(self, seconds: float) -> None:
        super().step(seconds)
        self._set(self.threads)

    def _set(self, threads: int) -> None:
        if self.is_adaptive and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
