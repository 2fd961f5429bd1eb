"""Comparisons for tests: runs with given losses, and simulated workers with given times."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normscope.lab.compare.comparison import Comparison, ComparisonPlan, combinations, comparison
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.running.trial import LabTrial, TrialResult
from normscope.lab.trials.text_sources import STORIES

GUESSING = 4.0


def metrics(loss: float) -> dict[str, Any]:
    """Metrics of a run; with the loss GUESSING it learned nothing."""
    return {
        "loss": loss,
        "guessing": loss == GUESSING,
        "diverged": False,
        "curve": [[1, GUESSING], [100, loss]],
        "parameters": 1000,
    }


def runs(**losses: Sequence[float]) -> VariantRuns:
    seeds = tuple(range(len(next(iter(losses.values())))))
    return VariantRuns(
        {name: [metrics(loss) for loss in values] for name, values in losses.items()},
        seeds,
        dict.fromkeys(losses, 0.01),
    )


def compared(
    found: VariantRuns,
    tuned: Mapping[str, Mapping[float, float]] | None = None,
    seconds: Sequence[float] | None = None,
    workers: int = 1,
    **model: Any,
) -> Comparison:
    """A comparison of these runs; `model` has the options that differ, one value per variant."""
    settings = {
        name: {
            "text": STORIES,
            "model": {"context": 64, "norm": "rms", **{key: values[i] for key, values in model.items()}},
        }
        for i, name in enumerate(found.variants)
    }
    times = dict(zip(found.variants, seconds or [1.0] * len(found.variants), strict=True))
    return Comparison(found, settings, tuned or {}, steps=100, seconds=times, workers=workers)


def plan(depths: Sequence[int] = (1, 2), **changes: Any) -> ComparisonPlan:
    usual = {"lrs": (1e-3, 1e-2, 1e-1), "refine": True, "seeds": 3, "minutes": 5.0, "workers": 2}
    return ComparisonPlan(combinations({"depth": depths}), **{**usual, **changes})


class Simulated:
    """Workers that simulate trials with given times.

    Args:
        workers: how many.
        step, besides: seconds of a trial on the clock, by its depth: for each step, and besides.
        loss: of a trial.
        start: seconds until workers can do anything.
        slower: how many seconds of the clock a second of a core takes.
        ends_early: whether a trial stops being finite at once.
    """

    def __init__(
        self,
        workers: int,
        step: Mapping[int, float],
        overhead: Mapping[int, float],
        loss: Callable[[LabTrial], float] = lambda trial: 1.0,
        start: float = 0.0,
        slower: float = 1.0,
        ends_early: Callable[[LabTrial], bool] = lambda trial: False,
    ) -> None:
        self.slower, self.ends_early = slower, ends_early
        self.workers, self.step, self.overhead, self.loss = workers, step, overhead, loss
        self.clock = start
        self.trials: list[LabTrial] = []

    def run(self, what: ComparisonPlan) -> Comparison:
        study = comparison(what)
        asked = next(study)
        while True:
            try:
                asked = study.send(self._all(asked))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _all(self, asked: Sequence[LabTrial]) -> list[TrialResult]:
        """Run in parallel: each trial goes to the first free worker."""
        busy_until = [self.clock] * self.workers
        done = []
        for trial in asked:
            who = busy_until.index(min(busy_until))
            one, seconds = self._one(trial)
            busy_until[who] += seconds
            done.append(one)
        self.clock = max(busy_until)
        return done

    def _one(self, trial: LabTrial) -> tuple[TrialResult, float]:
        self.trials.append(trial)
        depth = trial.settings["model"]["depth"]
        step, overhead = self.step[depth], self.overhead[depth]
        if trial.measure.endswith(":measure_run_cost"):
            spent = 3 * overhead + 20 * step
            found = {"step": step / self.slower, "overhead": overhead / self.slower, "core": spent / self.slower}
            return TrialResult({**found, "wall": spent, "spent": spent}, spent, ""), spent
        early = self.ends_early(trial)
        seconds = overhead + (0 if early else trial.settings["steps"] * step)
        return TrialResult({**metrics(self.loss(trial)), "diverged": early}, seconds, ""), seconds
