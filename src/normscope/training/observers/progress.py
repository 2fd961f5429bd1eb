"""The state of a run, accumulated from its events, for displays."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from normscope.runs.events import (
    CheckpointEvent,
    FinishedEvent,
    Observer,
    RunEvent,
    SampleEvent,
    StartedEvent,
    StepEvent,
    ThreadsEvent,
    ValidationEvent,
)
from normscope.training.config import LEARNING_RATES

WARMUP_STEPS = 3
"""Steps to exclude from timing: they load and compile code."""
MIN_TIMED_STEPS, RECENT_STEPS = 3, 20
"""Timed steps needed before the speed is shown, and recent steps used for it."""


class RunningMean:
    """Exponential moving average over about this many steps.

    >>> mean = RunningMean(steps=2)
    >>> for value in (4.0, 4.0, 2.0):
    ...     mean.add(value)
    >>> round(mean.value, 2)
    2.86
    """

    def __init__(self, steps: float) -> None:
        self._keep = 1 - 1 / max(1.0, steps)
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self._sum = self._keep * self._sum + value
            self._weight = self._keep * self._weight + 1

    @property
    def value(self) -> float:
        """The average; nan before the first value."""
        return self._sum / self._weight if self._weight else math.nan


class LossHistory:
    """The values of a whole run with limited memory: when it is full, neighbors are averaged.

    >>> history = LossHistory(capacity=4)
    >>> for value in range(8):
    ...     history.add(value)
    >>> history.values
    [0.5, 2.5, 4.5, 6.5]
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.values: list[float] = []
        self._capacity, self._each = capacity, 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) < self._each:
            return
        if len(self.values) == self._capacity:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [(first + second) / 2 for first, second in pairs]
            self._each *= 2
            return  # the pending values are now half of the next value
        self.values.append(sum(self._pending) / len(self._pending))
        self._pending = []


class RunProgress(Observer):
    """Observer that accumulates the state of a run.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.start: StartedEvent | None = None
        self.last: StepEvent | None = None
        self.validation: ValidationEvent | None = None
        self.best: ValidationEvent | None = None
        self.sample: SampleEvent | None = None
        self.saved: CheckpointEvent | None = None
        self.end: FinishedEvent | None = None
        self.threads: ThreadsEvent | None = None  # only while the machine is busy
        self.losses = LossHistory()
        self._reset(steps=1)

    def _reset(self, steps: int) -> None:
        memory = min(max(steps / 50, 5), 100)  # smooth, but still responsive
        self._loss = RunningMean(memory)
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._warming, self._warm = 0, self._clock()
        self._in_steps, self._timed = 0.0, 0

    def on_started(self, event: StartedEvent) -> None:
        self.start, self.began, self.end = event, self._clock(), None
        self._reset(event.steps)

    def on_validation(self, event: ValidationEvent) -> None:
        self.validation, self.best = event, event if event.best else self.best

    def on_sample(self, event: SampleEvent) -> None:
        self.sample = event

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.saved = event

    def on_threads(self, event: ThreadsEvent) -> None:
        self.threads = event if event.busy else None

    def on_finished(self, event: FinishedEvent) -> None:
        self.end = event

    def on_step(self, event: StepEvent) -> None:
        self.last = event
        self._loss.add(event.loss)
        if self._warming < WARMUP_STEPS:
            self._warming, self._warm = self._warming + 1, self._clock()
        else:
            self._seconds.append(event.seconds)
            self._in_steps += event.seconds
            self._timed += 1
        if math.isfinite(self.loss):
            self.losses.add(self.loss)

    @property
    def step(self) -> int:
        if self.last is not None:
            return self.last.step
        return 0 if self.start is None else self.start.step

    @property
    def steps(self) -> int:
        """Total number of steps; the steps so far if unknown."""
        return self.step if self.start is None else self.start.steps

    @property
    def loss(self) -> float:
        """Smoothed training loss."""
        return self._loss.value

    @property
    def elapsed(self) -> float:
        """Seconds since the run started."""
        return self._clock() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Throughput of recent steps; of the last step during warmup."""
        if self.start is None or not self._seconds:
            return math.nan if self.last is None else self.last.tokens_per_second
        return self.start.batch_tokens / max(statistics.median(self._seconds), 1e-9)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining time, including what happens between steps.

        nan before some steps were timed: the first steps load and compile code and would give far too high estimates.
        """
        if self._timed < MIN_TIMED_STEPS:
            return math.nan
        between = max(0.0, self._clock() - self._warm - self._in_steps) / self._timed
        return (statistics.median(self._seconds) + between) * max(0, self.steps - self.step)

    @property
    def floor(self) -> float | None:
        """Entropy of the text in bits per byte, the lower bound of every model; None if unknown."""
        return None if self.start is None else self.start.floor

    @property
    def uniform_bits(self) -> float:
        """Bits per byte of a uniform guess over the vocabulary, where an untrained model starts."""
        if self.start is None or self.start.bytes_per_token <= 0:
            return math.nan
        return math.log2(self.start.vocab_size) / self.start.bytes_per_token

    @property
    def learned(self) -> float | None:
        """Progress from a uniform guess (0) to the floor (1); None if unknown."""
        if self.validation is None or self.floor is None or not self.uniform_bits > self.floor:
            return None
        fraction = (self.uniform_bits - self.validation.bits_per_byte) / (self.uniform_bits - self.floor)
        return min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else None


def learning_rates(event: StepEvent) -> list[str]:
    """The learning rates of a step, by the names of their flags."""
    return [f"{name} {getattr(event, name):.1e}" for name in LEARNING_RATES]


class Display(Observer):
    """Base class of displays, which follow the progress of a run and don't show every step.

    Args:
        every: Minimum time between two steps that are shown, in seconds.
        clock: Returns the time in seconds.
    """

    def __init__(self, every: float, clock: Callable[[], float]) -> None:
        self._every, self._clock = every, clock
        self._progress = RunProgress(clock)
        self._next = -math.inf

    def on_event(self, event: RunEvent) -> None:
        self._progress.on_event(event)
        super().on_event(event)

    def _is_due(self, always: bool, every: float) -> bool:
        """Whether to show an event now; the next one is due after `every` seconds."""
        if not always and self._clock() < self._next:
            return False
        self._next = self._clock() + every
        return True
