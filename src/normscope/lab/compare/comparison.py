"""The study of a comparison: time each variant, tune its learning rate, then run all with every seed.

The variants are all combinations of the options to compare, as settings of `train_text`.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.blocks.norm.norm_spec import as_norm
from normscope.errors import ConfigError
from normscope.lab.claim import Settings
from normscope.lab.progress import work_of
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.running.scheduler import Study
from normscope.lab.running.time_estimates import measure_run_cost, run_costs, steps_within
from normscope.lab.running.trial import LabTrial, TrialResult, function_path
from normscope.lab.running.tuning import best_lr, round_lr, tune
from normscope.lab.trials.text import SMALL_GPT, build_on_meta, train_text

TIMING_SEED = 2000
TIMING_LR = 1e-4
"""The learning rate does not affect the speed, but a run that diverges ends too soon to be timed."""
AUTO_LRS = (1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEEDS = 2
MAX_VARIANTS = 24
"""With more, each would get too little time, and the intervals of so many pairs would be too wide."""


def combinations(choices: Mapping[str, Sequence[Any]], preset: str = "llama") -> dict[str, Settings]:
    """Return the settings of every combination, named by what differs.

    Args:
        choices: values to compare, by model option; a single value is used for all.
        preset: of all variants.

    >>> found = combinations({"norm": ["rms", "layer"], "wiring": ["pre", "post"], "depth": [2]})
    >>> list(found), found["rms pre"]["model"]["depth"]
    (['rms pre', 'rms post', 'layer pre', 'layer post'], 2)
    """
    differing = [name for name, values in choices.items() if len(values) > 1]
    if not differing:
        raise ConfigError("nothing to compare\nfix: give an option two values, such as --norm rms,layer")
    count = math.prod(len(values) for values in choices.values())
    if count > MAX_VARIANTS:  # before they are made: a few long lists have billions
        raise ConfigError(f"{count} combinations are too many\nfix: compare at most {MAX_VARIANTS}")
    found: dict[str, Settings] = {}
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        name = " ".join(_label(setting, chosen[setting]) for setting in differing)
        if name in found:
            raise ConfigError(f"{name!r} is listed twice\nfix: list every value once")
        # As many key/value heads as query heads: fewer would be another kind of attention.
        heads = chosen.get("heads", SMALL_GPT["model"]["heads"])
        model = {**SMALL_GPT["model"], "kv_heads": heads, **chosen}
        norm = as_norm(model.get("norm", "rms"))
        if norm is not None and norm.brackets(1, 3):  # shares statistics between tokens, as the user asked for
            model["allow_future_leak"] = True
        found[name] = {**SMALL_GPT, "preset": preset, "model": model}
    return found


def _label(setting: str, value: Any) -> str:
    """Name a value, with its option if it is not self-explanatory.

    >>> _label("norm", "rms"), _label("depth", 6), _label("norm", "none")
    ('rms', 'depth 6', 'norm none')
    """
    return str(value) if isinstance(value, str) and value != "none" else f"{setting} {value}"


def leaks_future(settings: Settings) -> bool:
    """Whether the norm leaks later tokens into earlier ones in training."""
    norm = as_norm(settings["model"].get("norm", "rms"))
    return norm is not None and norm.mixes_along(1, 3)


def check_buildable(variants: Mapping[str, Settings]) -> None:
    """Build each model on the meta device, so that invalid options fail before anything runs."""
    for name, settings in variants.items():
        try:
            build_on_meta(settings)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and in what time.

    Args:
        variants: settings by name.
        lrs: learning rates to try for each variant, in increasing order; a single one is used without tuning.
        refine: try one more learning rate per variant, near or beyond the best.
        seeds: number of seeds.
        minutes: wall-clock time budget.
        workers: number of parallel runs.
    """

    variants: Mapping[str, Settings]
    lrs: tuple[float, ...]
    refine: bool
    seeds: int
    minutes: float
    workers: int

    @property
    def stages(self) -> list[int]:
        """Runs per variant in each stage; each stage waits for the previous one."""
        tuning = [len(self.lrs) * TUNING_SEEDS] if len(self.lrs) > 1 else []
        return [*tuning, *([TUNING_SEEDS] if self.refine else []), self.seeds]

    @property
    def work(self) -> list[float]:
        """Work of every trial but those for timing, at one step per run: the number of steps is not known yet."""
        return [work_of(one_step(settings)) for settings in self.variants.values()] * sum(self.stages)


def one_step(settings: Settings) -> Settings:
    return {**settings, "steps": 1}


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        runs: all runs, with the learning rate of each variant.
        settings: of each variant.
        tuned: loss of each variant by learning rate.
        steps: per run.
        seconds: CPU seconds of the steps of a run, by variant; 0 if all runs diverged.
        workers: number of parallel runs.
    """

    runs: VariantRuns
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    steps: int
    seconds: Mapping[str, float]
    workers: int


def comparison(plan: ComparisonPlan) -> Study[Comparison]:
    """Time, tune and run all variants."""
    costs = [result.metrics for result in (yield timing_trials(plan))]
    steps = steps_within(run_costs(costs), plan.stages, 60 * plan.minutes, plan.workers)
    variants: dict[str, Settings] = {name: {**settings, "steps": steps} for name, settings in plan.variants.items()}
    tuned: dict[str, dict[float, float]] = {}
    lrs = dict.fromkeys(variants, plan.lrs[0])
    if len(plan.lrs) > 1:
        tuned, _ = yield from tune(variants, dict.fromkeys(variants, plan.lrs), TUNING_SEEDS, _train)
        if plan.refine:
            extra = {name: [extra_lr(losses)] for name, losses in tuned.items()}
            more, _ = yield from tune(variants, extra, TUNING_SEEDS, _train)
            tuned = {name: losses | more[name] for name, losses in tuned.items()}
        lrs = {name: best_lr(losses) for name, losses in tuned.items()}
    variants = {name: {**settings, "lr": lrs[name]} for name, settings in variants.items()}
    seeds = range(plan.seeds)
    results = yield [_train(settings, seed) for settings in variants.values() for seed in seeds]
    runs = VariantRuns.collect(variants, seeds, [result.metrics for result in results], lrs)
    seconds = {
        name: _step_seconds(results[i * plan.seeds : (i + 1) * plan.seeds], costs[i]["overhead"])
        for i, name in enumerate(variants)
    }
    return Comparison(runs, variants, tuned, steps, seconds, plan.workers)


def timing_trials(plan: ComparisonPlan) -> list[LabTrial]:
    """Return the trials that time the variants."""
    measure = function_path(measure_run_cost)
    return [LabTrial(measure, {**one, "lr": TIMING_LR}, TIMING_SEED) for one in plan.variants.values()]


def _step_seconds(results: Sequence[TrialResult], overhead: float) -> float:
    """Median CPU seconds of the steps of a run, over the runs that did not diverge."""
    seconds = [result.seconds for result in results if not result.metrics["diverged"]]
    return max(0.0, statistics.median(seconds) - overhead) if seconds else 0.0


def _train(settings: Settings, seed: int) -> LabTrial:
    return LabTrial(function_path(train_text), settings, seed)


def extra_lr(losses: Mapping[float, float]) -> float:
    """Return one more learning rate to try: beyond the edge, or between the best and its better neighbor.

    Every variant tries equally many, so none is favored.

    >>> extra_lr({0.01: 2.3, 0.03: 2.2, 0.1: 2.1}), extra_lr({0.01: 2.2, 0.04: 2.1, 0.16: 2.5})
    (0.33, 0.02)
    """
    lrs = sorted(losses)
    best = min(range(len(lrs)), key=lambda i: losses[lrs[i]])
    if best in (0, len(lrs) - 1):
        return round_lr(lrs[0] ** 2 / lrs[1] if best == 0 else lrs[-1] ** 2 / lrs[-2])
    neighbor = min(lrs[best - 1], lrs[best + 1], key=losses.__getitem__)
    return round_lr((lrs[best] * neighbor) ** 0.5)
