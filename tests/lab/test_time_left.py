"""The time left: near the truth soon, whatever the studies are like."""

from pathlib import Path

import pytest

from normscope.errors import ConfigError
from normscope.lab.catalog import all_claims
from normscope.lab.claim import get_budget
from normscope.lab.progress import LogProgress, TimeLeft, work_of
from normscope.lab.results.outcome import Outcome, load_outcome
from normscope.lab.running.run_claims import claim_trials
from normscope.lab.running.trial import LabTrial, TrialResult

COMMITTED = Path(__file__).parents[2] / "docs" / "lab"


def trials_of(outcome: Outcome) -> list[float]:
    """The work of every trial that an outcome rests on."""
    return [
        work_of(settings)
        for name, settings in outcome.settings.items()
        for _ in range(len(outcome.tuned.get(name, ())) + len(outcome.runs.seeds))
    ]


def test_the_committed_run_would_have_been_foreseen() -> None:
    """Replayed on two cores, with the seconds that every claim took: claims differ by a thousand times."""
    outcomes = [outcome for claim in all_claims() if (outcome := load_outcome(COMMITTED, claim.name))]
    work = {outcome.claim: trials_of(outcome) for outcome in outcomes}
    now, all_seconds = 0.0, sum(outcome.seconds for outcome in outcomes)
    remaining = TimeLeft(work, lambda: now)
    looked = 0
    for outcome in outcomes:
        trials = work[outcome.claim]
        for one in trials:
            seconds = outcome.seconds * one / sum(trials)
            now += seconds / 2
            remaining.done(outcome.claim, one, seconds, cached=False)
            if 0.1 < 2 * now / all_seconds < 0.99:
                looked += 1
                left = remaining.seconds()
                assert left is not None
                assert 0.5 < left / (all_seconds / 2 - now) < 2, f"in {outcome.claim} after {now:.0f} s"
    assert looked > 100
    assert remaining.seconds() == 0


@pytest.mark.parametrize("budget", ["quick", "full"])
def test_every_claim_knows_its_work(budget: str) -> None:
    by_number = {one.number: sum(map(work_of, claim_trials(one, get_budget(budget)))) for one in all_claims()}
    assert min(by_number.values()) > 0
    assert by_number[5] > 20 * by_number[1]  # one trains a hundred models, the other a dozen layers not at all


def test_what_is_like_nothing_that_was_seen_is_weighed_by_its_work() -> None:
    now = 0.0
    remaining = TimeLeft({"small": [1.0], "large": [30.0]}, lambda: now)
    assert remaining.seconds() is None
    now = 2.0
    remaining.done("small", 1.0, 2.0, cached=False)
    assert remaining.seconds() == pytest.approx(60.0)


def test_what_was_kept_took_no_time_now_but_tells_how_long_its_like_take() -> None:
    now = 0.0
    remaining = TimeLeft({"one": [10.0] * 4}, lambda: now)
    remaining.done("one", 10.0, 6.0, cached=True)
    assert remaining.seconds() is None  # how many hands there are is not seen yet
    now = 100.0
    remaining.done("one", 10.0, 2.0, cached=False)
    assert remaining.seconds() == pytest.approx(8.0)  # four seconds each, of one core


def test_what_a_failed_study_did_not_get_to_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LogProgress(TimeLeft({"bad": [50.0] * 90, "good": [50.0] * 10}), several=True)
    trial = LabTrial("normscope.lab.trials.text:train_text", {}, 0)
    lines.trial_done("bad", trial, TrialResult({}, 1.0, ""), cached=False)
    lines.study_done("bad", ConfigError("no"))
    assert (lines.remaining.finished, lines.remaining.total) == (1, 11)
    for _ in range(10):
        lines.trial_done("good", trial, TrialResult({}, 1.0, ""), cached=False)
    lines.study_done("good", None)
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["11 of 11 trials", "good: done"]
