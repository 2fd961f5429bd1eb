"""Test claims: the study of each tunes learning rates, then runs every variant with every seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.results.outcome import Outcome, save_outcome
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import answer, count_random, verdict_of
from normscope.lab.running.scheduler import Study, StudyObserver, TrialScheduler
from normscope.lab.running.store import Store
from normscope.lab.running.trial import LabTrial, function_path
from normscope.lab.running.tuning import best_lrs, tuned_losses, tuning_runs
from normscope.lab.running.workers import WorkerConfig
from normscope.lab.trials.text_sources import store_text

FIRST_SEED = 100
"""Verdicts use seeds that were never inspected: claims are designed with smaller ones."""
TOLERANCES = {"parameters": 0.02, "flops": 0.05, "steps": 0.0}
"""Allowed excess of the largest variant over the smallest, where a claim requires equality."""


def trial_count(claim: Claim, budget: Budget) -> int:
    """Return the number of trials of a study."""
    variants, tuning = claim.experiment.variants(budget), claim.experiment.tuning
    tuned = 0 if tuning is None else len(tuning_runs(variants, tuning(budget)))
    return tuned + budget.seeds * len(variants)


def claim_study(claim: Claim, budget: Budget, text: Any = None) -> Study[Outcome]:
    """Tune learning rates, then run every variant with every seed.

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


@dataclass(frozen=True)
class ClaimResults:
    """Outcomes in the order of the claims, and errors by claim name.

    Args:
        claims: the claims that were tested.
        outcomes: of the claims that did not fail.
        errors: of those that did.
    """

    claims: Sequence[Claim]
    outcomes: list[Outcome]
    errors: dict[str, Exception]

    @property
    def by_claim(self) -> list[tuple[Claim, Outcome | Exception]]:
        """Each claim with what became of it in this run: one that failed now may have an older result on disk."""
        became = {outcome.claim: outcome for outcome in self.outcomes} | self.errors
        return [(claim, became[claim.name]) for claim in self.claims]


def run_claims(
    claims: Sequence[Claim],
    budget: Budget,
    folder: str | Path,
    observer: StudyObserver,
    workers: WorkerConfig,
    text: Path | None = None,
) -> ClaimResults:
    """Test claims. Finished trials are stored in the folder, so that the same call resumes from there.

    Args:
        claims: which ones.
        budget: how much work.
        folder: for metrics and outcomes.
        observer: receives progress.
        workers: how trials are run.
        text: a file to train on instead of the built-in stories.
    """
    store = Store(folder)
    stored = None if text is None else store_text(text, store.texts)

    def saved(claim: Claim) -> Study[Outcome]:
        outcome = yield from claim_study(claim, budget, stored)
        save_outcome(folder, outcome)
        return outcome

    pool = workers.start(store.texts)
    try:
        scheduler: TrialScheduler[Outcome] = TrialScheduler(store, pool, observer)
        found = scheduler.run({claim.name: saved(claim) for claim in claims})
    finally:
        pool.close()
    return ClaimResults(claims, list(found.values()), scheduler.errors)
