"""A claim as a study: learning rates first, each variant by the same means; then every variant with every seed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.errors import ConfigError
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.outcome import Outcome
from normscope.lab.runs import Runs
from normscope.lab.schedule import Study
from normscope.lab.trial import Done, Trial, name_of
from normscope.lab.verdict import answer, verdict_of

FIRST_TUNING_SEED = 1000
"""Rates are chosen with seeds that the claim is not judged by: else the winner would owe some of it to luck."""

PARAMETERS_MAY_DIFFER = 0.02
COMPUTE_MAY_DIFFER = 0.05


def trial_count(claim: Claim, budget: Budget) -> int:
    """How many trials the study will ask for."""
    each = budget.seeds
    if claim.tuning is not None:
        tuning = claim.tuning(budget)
        each += len(tuning.rates) * tuning.seeds
    return each * len(claim.variants(budget))


def study(claim: Claim, budget: Budget, text: Any = None) -> Study[Outcome]:
    """The study of a claim.

    Args:
        claim: what is put to the test.
        budget: with how much work.
        text: a text to learn from in place of the built-in stories, where a claim learns from text.
    """
    variants = {name: _with_text(settings, text) for name, settings in claim.variants(budget).items()}
    seeds = tuple(range(budget.seeds))
    seconds = 0.0
    tuned: dict[str, dict[float, float]] = {}
    rates: dict[str, float] = {}
    if claim.tuning is not None:
        tuning = claim.tuning(budget)
        done = yield [_trial(claim, settings, seed) for settings, seed in _tries(variants, tuning)]
        seconds += sum(one.seconds for one in done)
        tuned = _means(list(variants), tuning, done)
        rates = {name: min(losses, key=losses.__getitem__) for name, losses in tuned.items()}
        variants = {name: {**settings, tuning.setting: rates[name]} for name, settings in variants.items()}
    done = yield [_trial(claim, settings, seed) for settings in variants.values() for seed in seeds]
    seconds += sum(one.seconds for one in done)
    figures = [one.figures for one in done]
    by_variant = {name: figures[i * len(seeds) : (i + 1) * len(seeds)] for i, name in enumerate(variants)}
    runs = Runs(by_variant, seeds, rates)
    refuse_unequal(claim, runs)
    questions = claim.questions(budget)
    answers = tuple(answer(question, runs.by_seed(), len(questions)) for question in questions)
    return Outcome(claim.name, verdict_of(answers), answers, runs, variants, tuned, budget, seconds)


def _with_text(settings: Settings, text: Any) -> Settings:
    return {**settings, "text": text} if text is not None and "text" in settings else settings


def _trial(claim: Claim, settings: Settings, seed: int) -> Trial:
    return Trial(name_of(claim.measure), settings, seed, alone=claim.kind == "measured")


def _tries(variants: Mapping[str, Settings], tuning: Tuning) -> list[tuple[Settings, int]]:
    return [
        ({**settings, tuning.setting: rate}, FIRST_TUNING_SEED + seed)
        for settings in variants.values()
        for rate in tuning.rates
        for seed in range(tuning.seeds)
    ]


def _means(names: Sequence[str], tuning: Tuning, done: Sequence[Done]) -> dict[str, dict[float, float]]:
    """Of each variant: what each rate gave, on average over the tuning's seeds."""
    losses = iter(float(one.figures[tuning.by]) for one in done)
    return {
        name: {rate: statistics.fmean(next(losses) for _ in range(tuning.seeds)) for rate in tuning.rates}
        for name in names
    }


def refuse_unequal(claim: Claim, runs: Runs) -> None:
    """Refuse to compare variants that do not have the same of what the claim says they have."""
    if claim.equal == "steps":
        return
    figure, most = {
        "parameters": ("parameters", PARAMETERS_MAY_DIFFER),
        "compute": ("flops", COMPUTE_MAY_DIFFER),
    }[claim.equal]
    sizes = {name: runs.mean(name, figure) for name in runs.variants}
    least, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[largest] > (1 + most) * sizes[least]:
        raise ConfigError(
            f"the claim {claim.name!r} compares variants of equal {claim.equal}, but {largest!r} has "
            f"{sizes[largest]:,.0f} and {least!r} {sizes[least]:,.0f}"
        )


def at_the_edge(outcome: Outcome) -> list[str]:
    """The variants whose best rate is the least or the greatest that was tried: a better one may lie beyond."""
    return [
        name
        for name, losses in outcome.tuned.items()
        if len(losses) > 1 and outcome.runs.rates[name] in (min(losses), max(losses))
    ]
