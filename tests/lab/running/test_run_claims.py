"""From a claim to its outcome: tuning with other seeds, paired runs, equal variants."""

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from normscope.errors import ConfigError, FileError
from normscope.lab.catalog import choose_claims
from normscope.lab.claim import Budget, Claim, LRTuning, get_budget
from normscope.lab.results.folders import outcome_path
from normscope.lab.results.outcome import Outcome, load_outcome, save_outcome
from normscope.lab.results.verdict import Question
from normscope.lab.running.run_claims import FIRST_SEED, check_equal, claim_study, claim_trials
from normscope.lab.running.scheduler import TrialScheduler
from normscope.lab.running.trial import LabTrial, Store
from normscope.lab.trials.text import SMALL_GPT, train_text
from tests.lab.made import changed_claim
from tests.lab.workers import Here, Silent

TINY = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 6, "batch": 2}
BUDGET = Budget("quick", seeds=2)


def tiny_claim(**changes: Any) -> Claim:
    """Two norms of a very small GPT, a few steps."""
    (known,) = choose_claims(["rmsnorm-vs-layernorm"])
    small: dict[str, Any] = {
        "variants": lambda budget: {
            norm: {**TINY, "model": {**TINY["model"], "norm": norm}} for norm in ("layer", "rms")
        },
        "questions": lambda budget: [
            Question("close", lambda runs: abs(runs["rms"]["loss"] - runs["layer"]["loss"]), 1.0, "below")
        ],
        "charts": lambda runs: [],
        "tuning": lambda budget: LRTuning((1e-4, 3e-2), seeds=2),
    }
    return changed_claim(known, **{**small, **changes})


def run(claim: Claim, folder: Path, budget: Budget = BUDGET) -> tuple[Outcome, list[LabTrial]]:
    workers = Here()
    schedule: TrialScheduler[Outcome] = TrialScheduler(Store(folder), workers, Silent())
    found = schedule.run({claim.name: claim_study(claim, budget)})
    for error in schedule.errors.values():
        raise error
    return found[claim.name], workers.started


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[LabTrial]]:
    """What came of the claim, and the trials that were started."""
    return run(tiny_claim(), tmp_path_factory.mktemp("tuned"))


def test_learning_rates_are_tuned_with_other_seeds_than_the_verdict(tuned: tuple[Outcome, list[LabTrial]]) -> None:
    outcome, started = tuned
    tuning = [trial for trial in started if trial.seed >= 1000]
    judged = [trial for trial in started if trial.seed < 1000]
    assert len(tuning) == 2 * 2 * 2
    assert {trial.seed for trial in judged} == {FIRST_SEED, FIRST_SEED + 1}
    assert len(started) == len(claim_trials(tiny_claim(), BUDGET))
    for name, losses in outcome.tuned.items():
        assert outcome.runs.lrs[name] == min(losses, key=losses.__getitem__)
        assert outcome.settings[name]["lr"] == outcome.runs.lrs[name]
        tried = [t for t in tuning if t.settings["model"]["norm"] == name and t.settings["lr"] == 3e-2]
        mean = sum(train_text(t.settings, t.seed)["loss"] for t in tried) / 2
        assert losses[3e-2] == pytest.approx(mean)


def test_outcome_survives_save_and_load(tuned: tuple[Outcome, list[LabTrial]], tmp_path: Path) -> None:
    outcome, _ = tuned
    path = save_outcome(tmp_path, outcome)
    assert load_outcome(tmp_path, outcome.claim) == outcome
    assert path == outcome_path(tmp_path, outcome.claim)
    assert load_outcome(tmp_path, "another") is None


def test_outcome_of_one_seed_has_an_infinite_interval_and_is_saved(tmp_path: Path) -> None:
    outcome, _ = run(tiny_claim(tuning=None), tmp_path, Budget("quick", 1))
    save_outcome(tmp_path, outcome)
    assert load_outcome(tmp_path, outcome.claim) == outcome
    assert outcome.verdict == "inconclusive"


def test_altered_outcome_is_refused(tmp_path: Path) -> None:
    outcome, _ = run(tiny_claim(tuning=None), tmp_path)
    path = save_outcome(tmp_path, outcome)
    path.write_text(path.read_text().replace('"verdict": "supported"', '"verdict": "contradicted"'))
    with pytest.raises(FileError, match="damaged"):
        load_outcome(tmp_path, outcome.claim)
    path.write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        load_outcome(tmp_path, outcome.claim)


@pytest.mark.parametrize(("equal", "metric"), [("parameters", "parameters"), ("compute", "flops")])
def test_unequal_variants_are_refused(tmp_path: Path, equal: Any, metric: str) -> None:
    wide = {**TINY, "model": {**TINY["model"], "width": 32}}
    claim = tiny_claim(tuning=None, variants=lambda budget: {"layer": TINY, "rms": wide}, equal=equal)
    with pytest.raises(ConfigError, match=f"equal {equal}"):
        run(claim, tmp_path)
    outcome, _ = run(changed_claim(claim, equal="steps"), tmp_path)
    assert outcome.runs.mean("rms", metric) > outcome.runs.mean("layer", metric)
    check_equal(changed_claim(claim, equal="steps"), outcome.runs)


def test_unequal_steps_are_refused(tmp_path: Path) -> None:
    claim = tiny_claim(tuning=None, variants=lambda budget: {"layer": TINY, "rms": {**TINY, "steps": 7}}, equal="steps")
    with pytest.raises(ConfigError, match="equal steps, but 'rms' has 7 and 'layer' 6"):
        run(claim, tmp_path)


def test_more_questions_give_wider_intervals(tmp_path: Path) -> None:
    def close(runs: Any) -> float:  # the last loss in training: after six steps, held-out text is still guessed
        return float(runs["rms"]["curve"][-1][1] - runs["layer"]["curve"][-1][1])

    def asking(times: int) -> Claim:
        every_seed = Question(
            "always", close, 9.0, "below", every_seed=True
        )  # chance has no part in it, so it does not count
        asked = [*times * [Question("close", close, 1.0, "below")], every_seed]
        return tiny_claim(tuning=None, questions=lambda budget: asked)

    one, _ = run(asking(1), tmp_path)
    two, _ = run(asking(2), tmp_path)
    (alone, _), (first, second, _) = one.answers, two.answers
    assert first == second
    assert first.effects == alone.effects
    wider = (first.interval.high - first.interval.low) / (alone.interval.high - alone.interval.low)
    assert wider == pytest.approx(stats.t.ppf(1 - 0.05 / 4, 1) / stats.t.ppf(1 - 0.05 / 2, 1))  # two seeds: one degree


def test_variant_can_share_a_learning_rate(tmp_path: Path) -> None:
    claim = tiny_claim(tuning=lambda budget: LRTuning((1e-4, 3e-2), shared=lambda name: "layer"))
    outcome, started = run(claim, tmp_path)
    tuning = [trial for trial in started if trial.seed >= 1000]
    assert {trial.settings["model"]["norm"] for trial in tuning} == {"layer"}
    assert outcome.settings["rms"]["lr"] == outcome.settings["layer"]["lr"] == 3e-2
    assert len(started) == len(claim_trials(claim, BUDGET)) == 2 + 4


def test_budgets() -> None:
    assert get_budget("full").seeds > get_budget("quick").seeds
    assert get_budget("quick", 3) == Budget("quick", 3)
    with pytest.raises(ConfigError, match="unknown budget 'large'"):
        get_budget("large")
    with pytest.raises(ConfigError, match="seeds=0"):
        get_budget("quick", 0)
