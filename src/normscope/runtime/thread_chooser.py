"""How many threads to use while other processes want the cores too.

Threads that work on one step wait for the slowest of them. If another process holds a core, the slowest is one that
isn't scheduled, and the others wait for it, time slice after time slice; fewer threads are then faster. How many is
suggested by the load. But nobody can be sure beforehand, since it depends on the scheduler, on priorities and on the
work. So a suggestion is followed, and then put to a trial: some steps with the threads it suggests, some with another
number, in turns, and what was clearly faster is kept until the load changes.

| when                                                    | trial                                   |
|---------------------------------------------------------|-----------------------------------------|
| the load suggested fewer threads                        | all                                     |
| the load suggests all, though others are in the way     | as many as cores are free               |
| steps got slower than the fastest with as many threads  | half                                    |
| fewer threads are used, and nothing is known of the load| twice as many                           |

A trial that is lost costs time. It is paid from an account that fills with a small share of the running time, so the
total cost is bounded. On an idle machine there is no reason for a trial, and none is run.

This file only decides: it reads no clock and sets no threads, so every decision can be tested with made-up times.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ThreadTuning:
    """Every constant of the decision; times in seconds.

    Args:
        window: how much work makes one measurement outside of trials.
        block: how long one side of a trial runs before it is the other's turn. The scheduler gives a process less for a
            while if it had more before, so that in short blocks each side would pay for the other.
        blocks: how many blocks each side has.
        gain: by which share another number of threads must be faster.
        slow: how many times the fastest measurement counts as slow, if it is seen twice in a row.
        forget: by which share the fastest measurement rises with each that is slower: the work may have changed.
        hopeless: a trial ends early when every block of one side takes so many times as long as any of the other; after
            one block each, the square of it.
        budget: the share of the running time that lost trials may cost.
        account: how much of that can be saved up.
        least_cost: the share of its time that a lost trial costs at least; it may have won by chance.
        memory: the weight that earlier trials under the same load keep in the next decision.
        load_every: how often the machine's load is read.
        patience: for how long the load must suggest something else.
    """

    window: float = 0.1
    block: float = 0.25
    blocks: int = 3
    gain: float = 0.1
    slow: float = 1.4
    forget: float = 0.01
    hopeless: float = 1.6
    budget: float = 0.03
    account: float = 0.3
    least_cost: float = 0.05
    memory: float = 0.85
    load_every: float = 0.5
    patience: float = 0.6


TUNING = ThreadTuning()


@dataclass
class _Candidate:
    """What was measured with one number of threads in a trial: the mean time of a step in each block."""

    threads: int
    seconds: float = 0.0
    steps: int = 0
    blocks: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return self.seconds / self.steps


@dataclass
class _StepTimes:
    """Step times over several trials with one number of threads, older trials counting less."""

    seconds: float = 0.0
    steps: float = 0.0

    def add(self, side: _Candidate, memory: float) -> float:
        """Add a trial; returns the weighted mean time of a step."""
        self.seconds = memory * self.seconds + side.seconds
        self.steps = memory * self.steps + side.steps
        return self.seconds / self.steps


@dataclass
class _Trial:
    chosen: _Candidate
    other: _Candidate
    running: _Candidate = field(init=False)
    block: float = 0.0  # seconds, and steps, of the block that runs
    block_steps: int = 0

    def __post_init__(self) -> None:
        self.running = self.other

    def add(self, seconds: float, tuning: ThreadTuning) -> None:
        self.running.seconds += seconds
        self.running.steps += 1
        self.block += seconds
        self.block_steps += 1
        if self.block >= tuning.block:
            self.running.blocks.append(self.block / self.block_steps)
            self.block, self.block_steps = 0.0, 0
            self.running = self.chosen if self.running is self.other else self.other

    def is_over(self, tuning: ThreadTuning) -> bool:
        one, other = self.chosen.blocks, self.other.blocks
        if self.block_steps or len(one) < len(other):
            return False
        limit = tuning.hopeless if len(one) > 1 else tuning.hopeless**2
        is_clear = any(min(a) > limit * max(b) for a, b in ((one, other), (other, one)))
        return is_clear or len(one) == tuning.blocks


@dataclass(frozen=True)
class ThreadSuggestion:
    """What the load of the machine suggests.

    Args:
        threads: how many threads promise to be the fastest.
        free: how many can run without waiting for others.
    """

    threads: int
    free_cores: int


class ThreadChooser:
    """Chooses the number of threads for the next step from the load and the times of the steps before.

    Args:
        most: how many threads to use on an idle machine.
        advice: what the load suggests at the beginning; None if unknown.
        allowed: whether a number of threads may be used at all; asked once for each, before its first use.
        tuning: the constants.

    >>> chooser = ThreadChooser(2)
    >>> for _ in range(100):                       # an idle machine: nothing to decide
    ...     chooser.step(0.01, ThreadSuggestion(threads=2, free_cores=2))
    >>> for _ in range(100):                       # another process wants a core, and one thread is faster
    ...     chooser.step(0.06 if chooser.threads == 2 else 0.02, ThreadSuggestion(threads=1, free_cores=1))
    >>> chooser.chosen
    1
    """

    def __init__(
        self,
        most: int,
        suggestion: ThreadSuggestion | None = None,
        *,
        is_allowed: Callable[[int], bool] = lambda threads: True,
        tuning: ThreadTuning = TUNING,
    ) -> None:
        self.most, self._allowed, self._tuning = most, is_allowed, tuning
        self._known = {most: True}  # which numbers are allowed, as far as was asked
        self._account = tuning.account
        self._fastest: dict[int, float] = {}
        self._step_times: defaultdict[int, _StepTimes] = defaultdict(_StepTimes)
        self._trial: _Trial | None = None
        self._window, self._steps, self._slow_windows = 0.0, 0, 0
        self.fewer_were_slower = False  # in the last trial
        self._followed = (
            most if suggestion is None else suggestion.threads
        )  # what was suggested when it was last followed
        self._changed_for = 0.0  # for how long something else has been suggested
        self.chosen = self._nearest(self._followed)

    @property
    def threads(self) -> int:
        """How many threads to use for the next step."""
        trial = self._trial
        return self.chosen if trial is None else trial.running.threads

    @property
    def fewer_are_not_allowed(self) -> bool:
        """Whether fewer threads were wanted, but none of the numbers that were asked about is allowed."""
        return False in self._known.values() and sum(self._known.values()) == 1

    def reset(self) -> None:
        """Forget the times: what comes now takes another time than what was before."""
        self._fastest.clear()
        self._step_times.clear()
        self._trial = None
        self._window, self._steps, self._slow_windows = 0.0, 0, 0

    def step(self, seconds: float, suggestion: ThreadSuggestion | None = None) -> None:
        """Take note of a step that took so many seconds with `threads` threads, and of what the load suggests now."""
        self._account = min(self._tuning.account, self._account + self._tuning.budget * seconds)
        if self._follow(seconds, suggestion):
            return
        if (trial := self._trial) is not None:
            trial.add(seconds, self._tuning)
            if trial.is_over(self._tuning):
                self._decide(trial)
            return
        self._window += seconds
        self._steps += 1
        if self._window >= self._tuning.window:
            self._maybe_start_trial(self._window / self._steps, suggestion)
            self._window, self._steps = 0.0, 0

    def _follow(self, seconds: float, suggestion: ThreadSuggestion | None) -> bool:
        """Do what is suggested if it is new and lasts; True if that changes anything."""
        if suggestion is None or suggestion.threads == self._followed:
            self._changed_for = 0.0
            return False
        self._changed_for += seconds
        if self._changed_for < self._tuning.patience:
            return False
        self._followed, self._changed_for = suggestion.threads, 0.0
        self.chosen, self.fewer_were_slower = self._nearest(suggestion.threads), False
        self.reset()
        return True

    def _maybe_start_trial(self, mean: float, suggestion: ThreadSuggestion | None) -> None:
        """Begin a trial if there is a reason for one, and the means."""
        fastest = min(mean, (1 + self._tuning.forget) * self._fastest.get(self.chosen, mean))
        self._fastest[self.chosen] = fastest
        self._slow_windows = self._slow_windows + 1 if mean > self._tuning.slow * fastest else 0
        if self._account <= self._tuning.account / 2 or self._changed_for:
            return
        target = self._target(suggestion)
        if target is not None and target != self.chosen and self._may_use(target):
            self._trial = _Trial(_Candidate(self.chosen), _Candidate(target))

    def _target(self, suggestion: ThreadSuggestion | None) -> int | None:
        """The number of threads to try now; None for no trial."""
        if suggestion is not None and self.chosen < self.most:
            return self.most
        if suggestion is not None and suggestion.free_cores < self.chosen:
            return self._nearest(suggestion.free_cores)
        if self._slow_windows >= 2 and self.chosen > 1:
            return self._nearest(self.chosen // 2)
        return min(2 * self.chosen, self.most) if suggestion is None else None

    def _nearest(self, threads: int) -> int:
        """As many threads, or as few as are allowed, or all."""
        wanted = max(1, min(threads, self.most))
        return next((count for count in (wanted, wanted // 2, 1) if count and self._may_use(count)), self.most)

    def _may_use(self, threads: int) -> bool:
        if threads not in self._known:
            self._known[threads] = self._allowed(threads)
        return self._known[threads]

    def _decide(self, trial: _Trial) -> None:
        chosen, other = trial.chosen, trial.other
        self._trial, self._slow_windows = None, 0
        # One trial under load is noisy: a single lucky quarter of a second must not undo what several have shown.
        mean, other_mean = (self._step_times[side.threads].add(side, self._tuning.memory) for side in (chosen, other))
        is_better = other_mean < (1 - self._tuning.gain) * mean
        self.fewer_were_slower = is_better == (other.threads > chosen.threads)
        if is_better:
            self.chosen = other.threads
        else:
            lost = other.seconds - other.steps * chosen.mean  # as far as so few steps can tell
            self._account -= max(self._tuning.least_cost * other.seconds, lost)
            # If fewer threads don't help, the work itself got slower, and this is its time now.
            self._fastest[chosen.threads] = chosen.mean
