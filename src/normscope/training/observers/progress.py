"""What is known of a run at a moment: the events, added up. The displays only put it into words or pictures."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from normscope.runs.events import (
    CheckpointEvent,
    FinishedEvent,
    RunEvent,
    SampleEvent,
    StartedEvent,
    StepEvent,
    ThreadsEvent,
    ValidationEvent,
)

WARM_UP = 3
"""How many steps are not like the others: they load and compile."""
FEWEST_TIMED, RECENT = 3, 20
"""How many steps after those it takes to tell the speed, and how many of the last ones tell it."""


class RunningMean:
    """A running mean that forgets: each value counts for about so many steps.

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
        """The mean; nan before the first value."""
        return self._sum / self._weight if self._weight else math.nan


class LossHistory:
    """The values of a whole run in limited room: when it is full, each two become one.

    >>> history = LossHistory(room=4)
    >>> for value in range(8):
    ...     history.add(value)
    >>> history.values
    [0.5, 2.5, 4.5, 6.5]
    """

    def __init__(self, room: int = 1024) -> None:
        self.values: list[float] = []
        self._room, self._each = room, 1
        self._waiting: list[float] = []

    def add(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) < self._each:
            return
        if len(self.values) == self._room:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [(first + second) / 2 for first, second in pairs]
            self._each *= 2
            return  # what waits is half of the next value now
        self.values.append(sum(self._waiting) / len(self._waiting))
        self._waiting = []


class RunProgress:
    """The state of a run, from what was told.

    Args:
        clock: seconds, from any moment on.
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
        self.threads: ThreadsEvent | None = None  # while the machine is busy with other work
        self.losses = LossHistory()
        self._be_ready(steps=1)

    def _be_ready(self, steps: int) -> None:
        memory = min(max(steps / 50, 5), 100)  # long enough to calm the curve, short enough to follow it
        self._loss = RunningMean(memory)
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._warming, self._warm = 0, self._clock()
        self._in_steps, self._timed = 0.0, 0

    def on_event(self, event: RunEvent) -> None:
        match event:
            case StartedEvent():
                self.start, self.began, self.end = event, self._clock(), None
                self._be_ready(event.steps)
            case StepEvent():
                self._step(event)
            case ValidationEvent():
                self.validation = event
                if event.best:
                    self.best = event
            case SampleEvent():
                self.sample = event
            case CheckpointEvent():
                self.saved = event
            case ThreadsEvent():
                self.threads = event if event.busy else None
            case FinishedEvent():
                self.end = event

    def _step(self, event: StepEvent) -> None:
        self.last = event
        self._loss.add(event.loss)
        if self._warming < WARM_UP:
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
        """How many there will be; those so far, where that was not told."""
        return self.step if self.start is None else self.start.steps

    @property
    def loss(self) -> float:
        """The training loss, smoothed."""
        return self._loss.value

    @property
    def elapsed(self) -> float:
        """Seconds since the start was told."""
        return self._clock() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Of the last steps; while it warms up, of the last one."""
        if self.start is None or not self._seconds:
            return math.nan if self.last is None else self.last.tokens_per_second
        return self.start.batch_tokens / max(statistics.median(self._seconds), 1e-9)

    @property
    def seconds_left(self) -> float:
        """How long the rest will take: steps as fast as of late, and their share of everything else.

        nan before some steps were timed: the first ones load and compile, and would tell of hours.
        """
        if self._timed < FEWEST_TIMED:
            return math.nan
        between = max(0.0, self._clock() - self._warm - self._in_steps) / self._timed
        return (statistics.median(self._seconds) + between) * max(0, self.steps - self.step)

    @property
    def floor(self) -> float | None:
        """Bits per byte that no model can beat, where that is known."""
        return None if self.start is None else self.start.floor

    @property
    def guessing(self) -> float:
        """The bits per byte of guessing blindly, every token as likely as any other: where a model starts."""
        if self.start is None or self.start.bytes_per_token <= 0:
            return math.nan
        return math.log2(self.start.vocab_size) / self.start.bytes_per_token

    @property
    def learnt(self) -> float | None:
        """How much of the way from guessing down to the floor is done, from 0 to 1; None where that is not known."""
        if self.validation is None or self.floor is None or not self.guessing > self.floor:
            return None
        share = (self.guessing - self.validation.bits_per_byte) / (self.guessing - self.floor)
        return min(1.0, max(0.0, share)) if math.isfinite(share) else None
