"""A synthetic claim and outcome, to get any verdict without a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.lab.claim import Budget, Claim, Experiment, LRTuning
from normscope.lab.report.describe import ClaimReport
from normscope.lab.results.outcome import Outcome
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import Answer, BySeed, Question, answer, verdict_of
from normscope.lab.toolkit import Chart, mean_lines
from normscope.lab.trials.text_sources import STORIES

SEEDS = (100, 101, 102, 103)
VARIANTS = {norm: {"norm": norm, "steps": 100, "shape": (2, 3), "text": STORIES} for norm in ("layer", "rms")}
LOSSES = {"layer": (2.0, 2.1, 2.2, 2.3), "rms": (2.01, 2.12, 2.21, 2.3)}
TUNED = {"layer": {0.001: 2.4, 0.003: 2.1, 0.01: 2.3}, "rms": {0.001: 2.5, 0.003: 2.2, 0.01: 2.0}}


def behind(by_seed: BySeed) -> float:
    return float(by_seed["rms"]["loss"] - by_seed["layer"]["loss"])


def questions(budget: Budget) -> list[Question]:
    return [
        Question("rms is at most 0.1 behind", behind, 0.1, "below", unit="nats"),
        Question("it is never a nat behind", behind, 1.0, "below", unit="nats", every_seed=True),
    ]


def made_claim(**changes: Any) -> Claim:
    claim = Claim(
        number=1,
        name="made-up",
        kind="trained",
        statement="RMSNorm is as good as LayerNorm.",
        source="Nobody.",
        design="None.",
        rule="Supported if it is at most 0.1 nats behind.",
        experiment=Experiment(
            variants=lambda budget: VARIANTS,
            measure=lambda settings, seed: {},
            questions=questions,
            charts=lambda runs: [
                Chart("Loss", "norm", "nats", mean_lines(runs, "loss", {"loss": list(LOSSES)}), categories=list(LOSSES))
            ],
            tuning=lambda budget: LRTuning((0.001, 0.003, 0.01)),
        ),
        supported="Take either.",
        contradicted="Take LayerNorm.",
        inconclusive="Try more seeds.",
    )
    return changed_claim(claim, **changes)


def changed_claim(claim: Claim, **changes: Any) -> Claim:
    """The claim with changed texts, or with changed fields of its experiment."""
    fields = {field.name for field in dataclasses.fields(Experiment)}
    experiment = {name: changes.pop(name) for name in fields & changes.keys()}
    return dataclasses.replace(claim, experiment=dataclasses.replace(claim.experiment, **experiment), **changes)


def shared_lrs(experiment: Experiment, budget: Budget) -> dict[str, str]:
    """The variants that use another variant's learning rate, and whose."""
    assert experiment.tuning is not None
    shared = experiment.tuning(budget).shared
    return {name: shared(name) for name in experiment.variants(budget) if shared(name) != name}


def made_outcome(**changes: Any) -> Outcome:
    """Of `made_claim()`."""
    claim, budget = made_claim(), Budget("quick", len(SEEDS))
    runs = made_runs()
    asked = questions(budget)
    answers = tuple(answer(question, runs.by_seed(), len(asked)) for question in asked)
    settings = {name: {**one, "lr": runs.lrs[name]} for name, one in VARIANTS.items()}
    outcome = Outcome(
        claim.name, verdict_of(answers), answers, runs, settings, TUNED, budget, seconds=1.0, rule=claim.rule
    )
    return dataclasses.replace(outcome, **changes)


def reported(**changes: Any) -> ClaimReport:
    """Of `made_claim()`, with changes of its outcome."""
    return ClaimReport(made_claim(), made_outcome(**changes))


def made_runs(guessing: Mapping[str, Sequence[bool]] | None = None) -> VariantRuns:
    """Metrics of each seed, optionally with the flag `guessing` of each run."""
    metrics: dict[str, list[dict[str, Any]]] = {
        name: [{"loss": loss, "parameters": 10} for loss in losses] for name, losses in LOSSES.items()
    }
    for name, words in (guessing or {}).items():
        for run, guesses in zip(metrics[name], words, strict=True):
            run["guessing"] = guesses
    return VariantRuns(metrics, SEEDS, {"layer": 0.0032, "rms": 0.01})


def made_answer(**changes: Any) -> Answer:
    """An answer with the given interval and verdict, regardless of the effects."""
    return dataclasses.replace(made_outcome().answers[0], **changes)
