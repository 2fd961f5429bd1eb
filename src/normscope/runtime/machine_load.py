"""How busy the machine is with other processes' work."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0  # of /proc/stat, per second
_IDLE, _IOWAIT, _STEAL = 3, 4, 7  # columns of /proc/stat; those after steal are counted in the first two already
_STAT, _LOADAVG, _QUOTA = Path("/proc/stat"), Path("/proc/loadavg"), Path("/sys/fs/cgroup/cpu.max")
SLACK = 0.3
"""How many cores others may use before it counts: a desktop is never entirely idle."""
CROWDED = 0.7
"""From how many threads of others per core on it pays to share all cores rather than to leave them some."""
SAMPLE_EVERY = 0.05  # seconds between two looks at how many threads want to run
STALE = 8
"""How many times as long as it should be, the time between two readings is too long."""


@dataclass(frozen=True)
class MachineLoad:
    """What a process can expect of the machine.

    Args:
        cores: how many cores this process may use.
        others: how many of them other processes kept busy; None where the system does not tell.
        waiting: how many other threads wanted to run at a time, with or without a core; None if unknown.
        average: the load average of the last minute, this process included; None if unknown.
    """

    cores: int
    other_cores: float | None
    waiting: float | None = None
    average: float | None = None

    @property
    def free_cores(self) -> int | None:
        """How many threads can run without waiting for others, one at least; None if unknown."""
        return None if self.other_cores is None else max(1, math.floor(self.cores - self.other_cores + SLACK))

    def threads_for(self, most: int) -> int | None:
        """How many of so many threads promise to be the fastest; None if unknown.

        While others want some of the cores, it is best to leave them these and run undisturbed on the rest. If they
        want nearly all, no core is left to be undisturbed on, and each thread gets one more share.

        >>> [MachineLoad(cores=4, other_cores=other_cores, waiting=other_cores).threads_for(4) for other_cores in (0.1, 1.0, 2.0, 4.0)]
        [4, 3, 2, 4]
        """
        if self.free_cores is None:
            return None
        if self.waiting is not None and self.waiting > CROWDED * self.cores:
            return most
        return min(most, self.free_cores)

    @property
    def is_busy(self) -> bool:
        """Whether others use so much that one thread per core would have to wait for them."""
        return self.other_cores is not None and self.other_cores > SLACK

    def __str__(self) -> str:
        if self.other_cores is None:
            return "unknown" if self.average is None else f"load average {self.average:.1f}"
        return f"other processes use {self.other_cores:.1f} of {self.cores} cores"


class LoadMeter:
    """Measures what other processes used between two readings.

    Other processes' time is what all cores did, less what this process did, so it counts whatever they are; what the
    host of a virtual machine took away counts as theirs.

    Args:
        busy: reads how many seconds this process' cores were busy so far; None where the system does not tell.
        own: how many of them were this process'.
        running: how many threads want to run at this moment, on the whole machine; None where the system does not tell.
        clock: seconds, from any moment on.
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
        """The load, measured at most once in so many seconds; to be called often, between pieces of work.

        A mean over much more than that, after a pause, would tell of the past, and is not used.
        """
        now = self._clock()
        if now >= self._next_sample and (running := self._running()) is not None:
            self._next_sample = now + SAMPLE_EVERY
            self._samples.append(running - 1)  # the one that asks
        if now - self._before[0] >= every:
            is_stale = now - self._before[0] > STALE * every
            found = self.read()
            self._last = MachineLoad(found.cores, None) if is_stale else found
        return self._last

    def read(self) -> MachineLoad:
        """The load since the last reading."""
        then, (now, own, busy) = self._before, self._read()
        samples, self._samples, self._before = self._samples, [], (now, own, busy)
        other_cores = None
        if busy is not None and then[2] is not None and now > then[0]:
            other_cores = max(0.0, (busy - then[2] - (own - then[1])) / (now - then[0]))
        waiting = sum(samples) / len(samples) if samples else None
        return MachineLoad(self._last.cores, other_cores, waiting, _load_average())


def measure_load(seconds: float = 0.3) -> MachineLoad:
    """The load right now, measured over so many seconds."""
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.load(seconds)


def usable_cores() -> int:
    """How many cores this process may use: all, those it is bound to, or what its control group is limited to."""
    cores = len(_bound_to() or ()) or os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control groups; or "max", which is no limit
        return cores


def busy_seconds() -> float | None:
    """How many seconds the cores of this process were busy since the machine was started; None if unknown."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    bound, total, seen = _bound_to(), 0, False
    for line in lines[1:]:  # the first is the sum of all cores
        name, *columns = line.split()
        if not name.startswith("cpu"):
            break
        if bound is None or int(name[3:]) in bound:
            ticks = [int(column) for column in columns[: _STEAL + 1]]
            total += sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
            seen = True
    return total / _TICKS if seen and total else None  # some sandboxes show zeros


def running_threads() -> int | None:
    """How many threads of the whole machine run or want to at this moment; None if unknown."""
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
