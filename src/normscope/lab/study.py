"""A claim as a study: learning rates first, each variant by the same means; then every variant with every seed."""

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
"""What is judged is judged with seeds that nobody has looked at: whoever designs a claim tries it with smaller ones."""
MAY_DIFFER = {"parameters": 0.02, "flops": 0.05, "steps": 0.0}
"""By what share the largest may exceed the least, where a claim says that all have as much."""


def trial_count(claim: Claim, budget: Budget) -> int:
    """How many trials the study will ask for."""
    variants = claim.variants(budget)
    found = 0
    if claim.tuning is not None:
        found = len(tuning_runs(variants, claim.tuning(budget)))
    return found + budget.seeds * len(variants)


def study(claim: Claim, budget: Budget, text: Any = None) -> Study[Outcome]:
    """The study of a claim.

    Args:
        claim: what is put to the test.
        budget: with how much work.
        text: a text to learn from in place of the built-in stories, where a claim learns from text.
    """
    variants = {name: _with_text(settings, text) for name, settings in claim.variants(budget).items()}
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + budget.seeds))
    seconds = 0.0
    tuned: dict[str, dict[float, float]] = {}
    lrs: dict[str, float] = {}
    if claim.tuning is not None:
        tuning = claim.tuning(budget)
        done = yield [_trial(claim, settings, seed) for settings, seed in tuning_runs(variants, tuning)]
        seconds += sum(one.seconds for one in done)
        tuned = tuned_losses(list(variants), tuning, done)
        lrs = best_lrs(tuned, tuning.shared)
        variants = {name: {**settings, tuning.setting: lrs[name]} for name, settings in variants.items()}
    done = yield [_trial(claim, settings, seed) for settings in variants.values() for seed in seeds]
    seconds += sum(one.seconds for one in done)
    runs = VariantRuns.collect(variants, seeds, [one.metrics for one in done], lrs)
    check_equal(claim, runs)
    questions = claim.questions(budget)
    answers = tuple(answer(question, runs.by_seed(), count_random(questions)) for question in questions)
    verdict = verdict_of(answers)
    return Outcome(claim.name, verdict, answers, runs, variants, tuned, budget, seconds, rule=claim.rule)


def _with_text(settings: Settings, text: Any) -> Settings:
    return {**settings, "text": text} if text is not None and "text" in settings else settings


def _trial(claim: Claim, settings: Settings, seed: int) -> LabTrial:
    return LabTrial(function_path(claim.measure), settings, seed, alone=claim.kind == "measured")


def check_equal(claim: Claim, runs: VariantRuns) -> None:
    """Refuse to compare variants that do not have the same of what the claim says they have."""
    metric = "flops" if claim.equal == "compute" else claim.equal
    trained = all("steps" in run for metrics in runs.metrics.values() for run in metrics)
    if metric == "steps" and not trained:
        return
    sizes = {name: runs.mean(name, metric) for name in runs.variants}
    least, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[largest] > (1 + MAY_DIFFER[metric]) * sizes[least]:
        raise ConfigError(
            f"the claim {claim.name!r} compares variants of equal {claim.equal}, but {largest!r} has "
            f"{sizes[largest]:,.0f} and {least!r} {sizes[least]:,.0f}"
        )
