"""Test claims: the study of each tunes learning rates, then runs every variant with every seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError
from normscope.lab.claim import Budget, Claim, Settings
from normscope.lab.results.outcome import Outcome, save_outcome
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import answer, count_random, verdict_of
from normscope.lab.running.scheduler import Study, StudyObserver, run_studies
from normscope.lab.running.trial import LabTrial, Store, function_path
from normscope.lab.running.tuning import best_lr, tune, tuned_variants
from normscope.lab.trials.text_sources import store_text

FIRST_SEED = 100
"""Verdicts use seeds that were never inspected: claims are designed with smaller ones."""
TOLERANCES = {"parameters": 0.02, "flops": 0.05, "steps": 0.0}
"""Allowed excess of the largest variant over the smallest, where a claim requires equality."""


def claim_trials(claim: Claim, budget: Budget) -> list[Settings]:
    """Return the settings of all trials of a study, without the learning rates."""
    variants, tuning = claim.experiment.variants(budget), claim.experiment.tuning
    tried: list[Settings] = []
    if tuning is not None:
        chosen = tuning(budget)
        tried = [variants[name] for name in tuned_variants(list(variants), chosen)] * (len(chosen.lrs) * chosen.seeds)
    return tried + list(variants.values()) * budget.seeds


def claim_study(claim: Claim, budget: Budget, text: Any = None) -> Study[Outcome]:
    """Tune learning rates, then run every variant with every seed.

    Args:
        claim: what is tested.
        budget: how much work.
        text: replaces the built-in stories in claims that train on text.
    """

    def trial(settings: Settings, seed: int) -> LabTrial:
        return LabTrial(function_path(experiment.measure), settings, seed, alone=claim.kind == "measured")

    experiment = claim.experiment
    stored = {} if text is None else {"text": text}
    variants = {
        name: {**settings, **stored} if "text" in settings else settings
        for name, settings in experiment.variants(budget).items()
    }
    tuned: dict[str, dict[float, float]] = {}
    lrs: dict[str, float] = {}
    seconds = 0.0
    if experiment.tuning is not None:
        tuning = experiment.tuning(budget)
        grid = dict.fromkeys(tuned_variants(list(variants), tuning), tuning.lrs)
        tuned, seconds = yield from tune(variants, grid, tuning.seeds, trial)
        lrs = {name: best_lr(tuned[tuning.shared(name)]) for name in variants}
        variants = {name: {**settings, "lr": lrs[name]} for name, settings in variants.items()}
    seeds = range(FIRST_SEED, FIRST_SEED + budget.seeds)
    results = yield [trial(settings, seed) for settings in variants.values() for seed in seeds]
    runs = VariantRuns.collect(variants, seeds, [result.metrics for result in results], lrs)
    check_equal(claim, runs)
    questions = experiment.questions(budget)
    answers = tuple(answer(question, runs.by_seed(), count_random(questions)) for question in questions)
    seconds += sum(result.seconds for result in results)
    verdict = verdict_of(answers)
    return Outcome(claim.name, verdict, answers, runs, variants, tuned, budget, seconds, rule=claim.rule)


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
        """Each claim with its outcome or error in this run; a failed claim may have an older result on disk."""
        became = {outcome.claim: outcome for outcome in self.outcomes} | self.errors
        return [(claim, became[claim.name]) for claim in self.claims]


def run_claims(
    claims: Sequence[Claim],
    budget: Budget,
    folder: str | Path,
    observer: StudyObserver,
    *,
    workers: int | None = None,
    ray: bool = False,
    text: Path | None = None,
) -> ClaimResults:
    """Test claims. Finished trials are stored in the folder, so that the same call resumes from there.

    Args:
        claims: which ones.
        budget: how much work.
        folder: for metrics and outcomes.
        observer: receives progress.
        workers: number of workers; None for one per core.
        ray: use Ray.
        text: a file to train on instead of the built-in stories.
    """
    store = Store(folder)
    stored = None if text is None else store_text(text, store.texts)

    def saved(claim: Claim) -> Study[Outcome]:
        outcome = yield from claim_study(claim, budget, stored)
        save_outcome(folder, outcome)
        return outcome

    outcomes, errors = run_studies(store, {claim.name: saved(claim) for claim in claims}, observer, workers, ray)
    return ClaimResults(claims, list(outcomes.values()), errors)
