"""Measure how much CPU other processes use."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0  # clock ticks per second in /proc/stat
_IDLE, _IOWAIT, _STEAL = 3, 4, 7  # columns of /proc/stat; the columns after steal are included in the first two
_STAT, _LOADAVG, _QUOTA = Path("/proc/stat"), Path("/proc/loadavg"), Path("/sys/fs/cgroup/cpu.max")
SLACK = 0.3
"""Cores that other processes may use before the machine counts as busy: a desktop is never entirely idle."""
CROWDED = 0.7
"""Runnable threads of other processes per core above which it is faster to share all cores than to give some up."""
SAMPLE_EVERY = 0.05  # seconds between two samples of the number of runnable threads
STALE = 8
"""A reading that covers more than this many intervals is discarded."""


@dataclass(frozen=True)
class MachineLoad:
    """CPU load of the machine.

    Args:
        cores: Cores available to this process.
        other_cores: Cores used by other processes; None if unknown.
        waiting: Mean number of runnable threads of other processes; None if unknown.
        average: Load average of the last minute, including this process; None if unknown.
    """

    cores: int
    other_cores: float | None
    waiting: float | None = None
    average: float | None = None

    @property
    def free_cores(self) -> int | None:
        """Threads that can run without waiting for other processes, at least one; None if unknown."""
        return None if self.other_cores is None else max(1, math.floor(self.cores - self.other_cores + SLACK))

    def threads_for(self, max_threads: int) -> int | None:
        """The number of threads that is probably the fastest; None if unknown.

        While other processes use some cores, it is best to run on the rest. If they use nearly all, every additional
        thread gets an additional share of the CPU.

        >>> [MachineLoad(cores=4, other_cores=busy, waiting=busy).threads_for(4) for busy in (0.1, 1.0, 2.0, 4.0)]
        [4, 3, 2, 4]
        """
        if self.free_cores is None:
            return None
        if self.waiting is not None and self.waiting > CROWDED * self.cores:
            return max_threads
        return min(max_threads, self.free_cores)

    @property
    def is_busy(self) -> bool:
        """Whether one thread per core would have to wait for other processes."""
        return self.other_cores is not None and self.other_cores > SLACK

    def __str__(self) -> str:
        if self.other_cores is None:
            return "unknown" if self.average is None else f"load average {self.average:.1f}"
        return f"other processes use {self.other_cores:.1f} of {self.cores} cores"


class LoadMeter:
    """Measures the CPU time of other processes between two readings: all CPU time minus this process's own.

    CPU time stolen by the host of a virtual machine counts as other processes' time.

    Args:
        busy: Returns the CPU seconds of all cores of this process so far; None if unknown.
        own: Returns the CPU seconds of this process.
        running: Returns the number of runnable threads on the machine; None if unknown.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        busy: Callable[[], float | None] | None = None,
        own: Callable[[], float] = time.process_time,
        running: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._busy, self._own, self._clock = busy or busy_seconds, own, clock
        self._running = running or running_threads
        self._before, self._last = self._read(), MachineLoad(usable_cores(), None)
        self._samples, self._next_sample = list[int](), 0.0

    def _read(self) -> tuple[float, float, float | None]:
        return self._clock(), self._own(), self._busy()

    def load(self, every: float) -> MachineLoad:
        """The load, measured at most once every `every` seconds. Call it often, between pieces of work.

        A mean over a much longer time, after a pause, would be outdated and is discarded.
        """
        now = self._clock()
        if now >= self._next_sample and (running := self._running()) is not None:
            self._next_sample = now + SAMPLE_EVERY
            self._samples.append(running - 1)  # without the calling thread
        if now - self._before[0] >= every:
            is_stale = now - self._before[0] > STALE * every
            found = self.read()
            self._last = MachineLoad(found.cores, None) if is_stale else found
        return self._last

    def read(self) -> MachineLoad:
        """Measure the load since the last reading."""
        then, (now, own, busy) = self._before, self._read()
        samples, self._samples, self._before = self._samples, [], (now, own, busy)
        other_cores = None
        if busy is not None and then[2] is not None and now > then[0]:
            other_cores = max(0.0, (busy - then[2] - (own - then[1])) / (now - then[0]))
        waiting = sum(samples) / len(samples) if samples else None
        return MachineLoad(self._last.cores, other_cores, waiting, _load_average())


def measure_load(seconds: float = 0.3) -> MachineLoad:
    """Measure the current load over this many seconds."""
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.load(seconds)


def usable_cores() -> int:
    """Cores available to this process, given its CPU affinity and cgroup quota."""
    cores = len(_bound_to() or ()) or os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroups, or no limit ("max")
        return cores


def busy_seconds() -> float | None:
    """CPU seconds of the cores of this process since boot; None if unknown."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    bound, total, seen = _bound_to(), 0, False
    for line in lines[1:]:  # the first line is the total
        name, *columns = line.split()
        if not name.startswith("cpu"):
            break
        if bound is None or int(name[3:]) in bound:
            ticks = [int(column) for column in columns[: _STEAL + 1]]
            total += sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
            seen = True
    return total / _TICKS if seen and total else None  # some sandboxes show zeros


def running_threads() -> int | None:
    """Number of runnable threads on the machine; None if unknown."""
    try:
        return int(_LOADAVG.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


def _bound_to() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
