"""Charts of differences show the intervals of the verdict."""

import math

import pytest

from normscope.lab.catalog import all_claims
from normscope.lab.claim import Claim, get_budget
from normscope.lab.report.describe import ClaimReport
from normscope.lab.results.outcome import load_outcome
from normscope.lab.toolkit import OF_EACH, difference_lines
from tests.lab.claims.test_claims import RESULTS
from tests.lab.made import made_outcome, made_runs, questions

PAIR = {"difference": [("rms", "layer")]}


def test_difference_charts_show_the_intervals_of_the_verdict() -> None:
    asked = questions(get_budget("quick"))
    chance = [question for question in asked if not question.every_seed]
    (alone,) = difference_lines(made_runs(), PAIR, lambda budget: asked)
    (twice,) = difference_lines(made_runs(), PAIR, lambda budget: [*asked, *chance])
    assert alone.interval_label == "95% interval of each difference, as used for the verdict"
    assert twice.interval_label == "97.5% interval of each difference, as used for the verdict"
    decided = made_outcome().answers[0].interval  # of two, as `made_outcome` has it
    assert twice.interval[0][1:] == pytest.approx((decided.low, decided.high))
    assert alone.interval[0][1] > twice.interval[0][1]


@pytest.mark.parametrize("claim", all_claims(), ids=lambda claim: claim.name)
def test_charts_of_claims_show_the_intervals_of_the_answers(claim: Claim) -> None:
    """Intervals drawn as those of the verdict are among the answers, and every interval has a label."""
    outcome = load_outcome(RESULTS, claim.name)
    assert outcome is not None
    for chart in ClaimReport(claim, outcome).charts:
        for line in chart.lines:
            assert not line.interval or line.interval_label, chart.title
            if line.interval and "as used for the verdict" in line.interval_label:
                widths = {answer.interval.width for answer in outcome.answers}
                for _, low, high in line.interval:
                    assert any(math.isclose(high - low, width) for width in widths), chart.title


def test_both_interval_kinds_occur() -> None:
    """Otherwise the test above would be empty."""
    found = [(claim, outcome) for claim in all_claims() if (outcome := load_outcome(RESULTS, claim.name))]
    said = {line.interval_label for one in found for chart in ClaimReport(*one).charts for line in chart.lines}
    assert OF_EACH in said
    assert any("as used for the verdict" in words for words in said)
