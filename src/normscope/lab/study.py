"""The study of a claim: tune learning rates, then run every variant with every seed."""

from typing import Any

from normscope.errors import ConfigError
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.outcome import Outcome
from normscope.lab.scheduler import Study
from normscope.lab.trial import LabTrial, function_path
from normscope.lab.tuning import best_lrs, tuned_losses, tuning_runs
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import answer, count_random, verdict_of

FIRST_SEED = 100
"""Verdicts use seeds that were never inspected: claims are designed with smaller ones."""
TOLERANCES = {"parameters": 0.02, "flops": 0.05, "steps": 0.0}
"""Allowed excess of the largest variant over the smallest, where a claim requires equality."""


def trial_count(claim: Claim, budget: Budget) -> int:
    """Return the number of trials of a study."""
    variants, tuning = claim.experiment.variants(budget), claim.experiment.tuning
    tuned = 0 if tuning is None else len(tuning_runs(variants, tuning(budget)))
    return tuned + budget.seeds * len(variants)


def study(claim: Claim, budget: Budget, text: Any = None) -> Study[Outcome]:
    """Run the study of a claim.

    Args:
        claim: what is tested.
        budget: how much work.
        text: replaces the built-in stories in claims that train on text.
    """
    experiment = claim.experiment
    variants = {name: _with_text(settings, text) for name, settings in experiment.variants(budget).items()}
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + budget.seeds))
    seconds = 0.0
    tuned: dict[str, dict[float, float]] = {}
    lrs: dict[str, float] = {}
    if experiment.tuning is not None:
        tuning = experiment.tuning(budget)
        results = yield [_trial(claim, settings, seed) for settings, seed in tuning_runs(variants, tuning)]
        seconds += sum(result.seconds for result in results)
        tuned = tuned_losses(list(variants), tuning, results)
        lrs = best_lrs(tuned, tuning.shared)
        variants = {name: {**settings, tuning.setting: lrs[name]} for name, settings in variants.items()}
    results = yield [_trial(claim, settings, seed) for settings in variants.values() for seed in seeds]
    seconds += sum(result.seconds for result in results)
    runs = VariantRuns.collect(variants, seeds, [result.metrics for result in results], lrs)
    check_equal(claim, runs)
    questions = experiment.questions(budget)
    answers = tuple(answer(question, runs.by_seed(), count_random(questions)) for question in questions)
    verdict = verdict_of(answers)
    return Outcome(claim.name, verdict, answers, runs, variants, tuned, budget, seconds, rule=claim.rule)


def _with_text(settings: Settings, text: Any) -> Settings:
    return {**settings, "text": text} if text is not None and "text" in settings else settings


def _trial(claim: Claim, settings: Settings, seed: int) -> LabTrial:
    return LabTrial(function_path(claim.experiment.measure), settings, seed, alone=claim.kind == "measured")


def check_equal(claim: Claim, runs: VariantRuns) -> None:
    """Refuse to compare variants that differ in what the claim requires to be equal."""
    equal = claim.experiment.equal
    metric = "flops" if equal == "compute" else equal
    trained = all("steps" in run for metrics in runs.metrics.values() for run in metrics)
    if metric == "steps" and not trained:
        return
    sizes = {name: runs.mean(name, metric) for name in runs.variants}
    smallest, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[largest] > (1 + TOLERANCES[metric]) * sizes[smallest]:
        raise ConfigError(
            f"the claim {claim.name!r} compares variants of equal {equal}, but {largest!r} has "
            f"{sizes[largest]:,.0f} and {smallest!r} {sizes[smallest]:,.0f}"
        )
