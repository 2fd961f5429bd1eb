"""Choose the number of threads while other processes compete for the cores.

The threads of a step wait for the slowest of them. If another process holds a core, one thread isn't scheduled and all
others wait for it, so that fewer threads are faster. The load suggests a number, but the best one depends on the
scheduler, on priorities and on the work. So a suggestion is followed and then tested in a trial that alternates between
it and another number. The clearly faster one is kept until the load changes.

| when                                                        | number to try          |
|-------------------------------------------------------------|------------------------|
| the load suggested fewer threads                            | all                    |
| the load suggests all threads, but other processes compete  | number of free cores   |
| steps became slower than the fastest with this number       | half                   |
| fewer threads are used and the load is unknown              | twice as many          |

A lost trial costs time. It is paid from a budget that fills with a small fraction of the running time, which bounds the
total cost. On an idle machine no trial is run.

This module only decides: it reads no clock and sets no threads, so that decisions can be tested with simulated times.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ThreadTuning:
    """Constants of the decision; times in seconds.

    Args:
        window: Duration of one measurement outside of trials.
        block: Duration of one block of a trial, before the other number's turn. In short blocks each number would pay
            for the other, since the scheduler gives a process less CPU after it had more.
        blocks: Blocks per number in a trial.
        gain: Fraction by which another number must be faster to be chosen.
        slow: Ratio to the fastest measurement that counts as slow, if seen twice in a row.
        drift: Fraction by which the fastest measurement rises with each slower one: the work may have changed.
        early_stop: A trial ends early if all blocks of one number take this many times as long as any of the other;
            after one block each, the square of it.
        budget_rate: Fraction of the running time that lost trials may cost.
        max_budget: Maximum budget for trials.
        min_cost: Minimum cost of a lost trial, as a fraction of its time.
        history_decay: Weight of earlier trials under the same load in the next decision.
        load_every: Interval between readings of the load.
        patience: How long a different suggestion must last before it is followed.
    """

    window: float = 0.1
    block: float = 0.25
    blocks: int = 3
    gain: float = 0.1
    slow: float = 1.4
    drift: float = 0.01
    early_stop: float = 1.6
    budget_rate: float = 0.03
    max_budget: float = 0.3
    min_cost: float = 0.05
    history_decay: float = 0.85
    load_every: float = 0.5
    patience: float = 0.6


TUNING = ThreadTuning()


@dataclass
class _Candidate:
    """Measurements of one number of threads in a trial; `blocks` has the mean step time of each block."""

    threads: int
    seconds: float = 0.0
    steps: int = 0
    blocks: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return self.seconds / self.steps


@dataclass
class _StepTimes:
    """Step times of one number of threads over several trials, with decaying weights."""

    seconds: float = 0.0
    steps: float = 0.0

    def add(self, candidate: _Candidate, decay: float) -> float:
        """Add a trial and return the weighted mean step time."""
        self.seconds = decay * self.seconds + candidate.seconds
        self.steps = decay * self.steps + candidate.steps
        return self.seconds / self.steps


@dataclass
class _ThreadTrial:
    chosen: _Candidate
    other: _Candidate
    running: _Candidate = field(init=False)
    block: float = 0.0  # seconds of the current block
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
        limit = tuning.early_stop if len(one) > 1 else tuning.early_stop**2
        is_decided = any(min(a) > limit * max(b) for a, b in ((one, other), (other, one)))
        return is_decided or len(one) == tuning.blocks


@dataclass(frozen=True)
class ThreadSuggestion:
    """What the load of the machine suggests.

    Args:
        threads: The number of threads that is probably the fastest.
        free_cores: Threads that can run without waiting for other processes.
    """

    threads: int
    free_cores: int


class ThreadChooser:
    """Chooses the number of threads for the next step from the load and previous step times.

    Args:
        max_threads: Number of threads on an idle machine.
        suggestion: What the load suggests at the start; None if unknown.
        is_allowed: Whether a number of threads may be used; called once per number, before its first use.
        tuning: Constants of the decision.

    >>> chooser = ThreadChooser(2)
    >>> for _ in range(100):                       # idle machine: nothing to decide
    ...     chooser.step(0.01, ThreadSuggestion(threads=2, free_cores=2))
    >>> for _ in range(100):                       # another process uses a core: one thread is faster
    ...     chooser.step(0.06 if chooser.threads == 2 else 0.02, ThreadSuggestion(threads=1, free_cores=1))
    >>> chooser.chosen
    1
    """

    def __init__(
        self,
        max_threads: int,
        suggestion: ThreadSuggestion | None = None,
        *,
        is_allowed: Callable[[int], bool] = lambda threads: True,
        tuning: ThreadTuning = TUNING,
    ) -> None:
        self.max_threads, self._is_allowed, self._tuning = max_threads, is_allowed, tuning
        self._allowed_counts = {max_threads: True}  # cached results of is_allowed
        self._budget = tuning.max_budget
        self._fastest: dict[int, float] = {}
        self._step_times: defaultdict[int, _StepTimes] = defaultdict(_StepTimes)
        self._trial: _ThreadTrial | None = None
        self._window, self._steps, self._slow_windows = 0.0, 0, 0
        self.fewer_were_slower = False  # in the last trial
        self._last_suggestion = max_threads if suggestion is None else suggestion.threads
        self._changed_for = 0.0  # seconds for which the suggestion has been different
        self.chosen = self._nearest(self._last_suggestion)

    @property
    def threads(self) -> int:
        """Number of threads for the next step."""
        trial = self._trial
        return self.chosen if trial is None else trial.running.threads

    @property
    def fewer_are_not_allowed(self) -> bool:
        """Whether fewer threads were wanted, but none of the numbers tried is allowed."""
        return False in self._allowed_counts.values() and sum(self._allowed_counts.values()) == 1

    def reset(self) -> None:
        """Forget the step times: the next steps do different work."""
        self._fastest.clear()
        self._step_times.clear()
        self._trial = None
        self._window, self._steps, self._slow_windows = 0.0, 0, 0

    def step(self, seconds: float, suggestion: ThreadSuggestion | None = None) -> None:
        """Record the time of a step with `threads` threads, and the current suggestion."""
        self._budget = min(self._tuning.max_budget, self._budget + self._tuning.budget_rate * seconds)
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
        """Follow a new suggestion that lasts; returns whether it was followed."""
        if suggestion is None or suggestion.threads == self._last_suggestion:
            self._changed_for = 0.0
            return False
        self._changed_for += seconds
        if self._changed_for < self._tuning.patience:
            return False
        self._last_suggestion, self._changed_for = suggestion.threads, 0.0
        self.chosen, self.fewer_were_slower = self._nearest(suggestion.threads), False
        self.reset()
        return True

    def _maybe_start_trial(self, mean: float, suggestion: ThreadSuggestion | None) -> None:
        """Start a trial if there is a reason and enough budget."""
        fastest = min(mean, (1 + self._tuning.drift) * self._fastest.get(self.chosen, mean))
        self._fastest[self.chosen] = fastest
        self._slow_windows = self._slow_windows + 1 if mean > self._tuning.slow * fastest else 0
        if self._budget <= self._tuning.max_budget / 2 or self._changed_for:
            return
        target = self._target(suggestion)
        if target is not None and target != self.chosen and self._check_allowed(target):
            self._trial = _ThreadTrial(_Candidate(self.chosen), _Candidate(target))

    def _target(self, suggestion: ThreadSuggestion | None) -> int | None:
        """Number of threads to try now; None for no trial."""
        if suggestion is not None and self.chosen < self.max_threads:
            return self.max_threads
        if suggestion is not None and suggestion.free_cores < self.chosen:
            return self._nearest(suggestion.free_cores)
        if self._slow_windows >= 2 and self.chosen > 1:
            return self._nearest(self.chosen // 2)
        return min(2 * self.chosen, self.max_threads) if suggestion is None else None

    def _nearest(self, threads: int) -> int:
        """The requested number; otherwise half of it or one, if allowed; otherwise all threads."""
        wanted = max(1, min(threads, self.max_threads))
        return next(
            (count for count in (wanted, wanted // 2, 1) if count and self._check_allowed(count)), self.max_threads
        )

    def _check_allowed(self, threads: int) -> bool:
        if threads not in self._allowed_counts:
            self._allowed_counts[threads] = self._is_allowed(threads)
        return self._allowed_counts[threads]

    def _decide(self, trial: _ThreadTrial) -> None:
        chosen, other = trial.chosen, trial.other
        self._trial, self._slow_windows = None, 0
        # A single trial under load is noisy: it must not undo the result of several.
        mean, other_mean = (
            self._step_times[candidate.threads].add(candidate, self._tuning.history_decay)
            for candidate in (chosen, other)
        )
        is_better = other_mean < (1 - self._tuning.gain) * mean
        self.fewer_were_slower = is_better == (other.threads > chosen.threads)
        if is_better:
            self.chosen = other.threads
        else:
            lost = other.seconds - other.steps * chosen.mean
            self._budget -= max(self._tuning.min_cost * other.seconds, lost)
            # If fewer threads don't help, the work itself became slower, and this is its normal time.
            self._fastest[chosen.threads] = chosen.mean
