"""Descriptions of outcomes: the deciding answer, intervals, notices, outdated results."""

import dataclasses
import math
import re
from typing import Any

import pytest

from normscope.errors import FileError
from normscope.lab.report.describe import (
    OUTDATED,
    WITHDRAWN,
    describe_text,
    format_effect,
    format_threshold,
    notices,
)
from normscope.lab.report.overview import caveats
from normscope.lab.report.page import lab_markdown, lab_page
from normscope.lab.report.terminal import format_claims, format_outcomes
from normscope.lab.results.outcome import Outcome
from normscope.lab.results.statistics import Interval
from normscope.lab.results.verdict import Answer, Side, Verdict
from tests.lab.made import made_answer, made_claim, made_outcome, made_runs, reported


def found(text: str, verdict: Verdict, low: float, high: float, line: float, side: Side = "below") -> Answer:
    return made_answer(
        text=text,
        verdict=verdict,
        interval=Interval((low + high) / 2, low, high),
        threshold=line,
        side=side,
        every_seed=False,
    )


def every_seed(text: str, verdict: Verdict, low: float, high: float, line: float, side: Side = "below") -> Answer:
    return dataclasses.replace(found(text, verdict, low, high, line, side), every_seed=True, confidence=None)


def decided_by(*answers: Answer) -> str:
    """The text of the deciding answer, which does not depend on the order."""
    verdicts = {answer.verdict for answer in answers}
    verdict = "contradicted" if "contradicted" in verdicts else "supported" if len(verdicts) == 1 else "inconclusive"
    texts = {reported(verdict=verdict, answers=some).deciding.text for some in (answers, answers[::-1])}
    (text,) = texts
    return text


def test_supported_claim_is_decided_by_its_weakest_part() -> None:
    near, far = found("near", "supported", 0.0, 0.9, 1.0), found("far", "supported", 0.0, 0.1, 1.0)
    assert decided_by(near, far) == "near"


def test_contradicted_claim_is_decided_by_the_strongest_evidence_against_it() -> None:
    near, far = found("near", "contradicted", 1.1, 2.0, 1.0), found("far", "contradicted", 5.0, 5.2, 1.0)
    assert decided_by(near, far, found("for it", "supported", 0.0, 0.1, 1.0)) == "far"


def test_inconclusive_claim_is_decided_by_the_part_furthest_from_support() -> None:
    hopeful, hopeless = (
        found("hopeful", "inconclusive", 0.0, 1.1, 1.0),
        found("hopeless", "inconclusive", 0.9, 2.0, 1.0),
    )
    assert decided_by(hopeful, hopeless, found("for it", "supported", 0.9, 0.99, 1.0)) == "hopeless"
    upward = found("upward", "inconclusive", 0.0, 1.1, 1.0, "above")
    assert decided_by(upward, hopeful, found("for it", "supported", 0.9, 0.99, 1.0)) == "upward"


def test_seed_noise_decides_before_every_seed_and_before_rounding() -> None:
    rounding = every_seed("rounding", "supported", 0.0, 0.9e-6, 1e-6)
    size, chance = every_seed("size", "supported", 0.5, 0.9, 0.1, "above"), found("chance", "supported", 0.0, 0.1, 1.0)
    assert decided_by(rounding, size, chance) == "chance"
    assert decided_by(rounding, size) == "size"
    assert decided_by(rounding) == "rounding"


def test_worst_seed_decides_if_every_seed_must_hold() -> None:
    one_bad, all_fair = (
        every_seed("one bad", "supported", 0.0, 0.99, 1.0),
        every_seed("all fair", "supported", 0.6, 0.7, 1.0),
    )
    assert decided_by(one_bad, all_fair) == "one bad"


def test_interval_of_zero_width_can_decide() -> None:
    sure, near = found("sure", "supported", 0.5, 0.5, 1.0), found("near", "supported", 0.0, 0.9, 1.0)
    assert decided_by(sure, near) == "near"


def test_format_effect_names_the_kind_of_interval() -> None:
    chance, every = made_outcome().answers
    assert format_effect(chance).startswith("0.0100 (97.5%: ")
    assert format_effect(every) == "0.0100 (every seed: 0 to 0.0200) nats"
    alone = dataclasses.replace(chance, interval=Interval(1.0, -math.inf, math.inf))
    assert format_effect(alone) == "1.00 (one seed: no interval) nats"
    assert format_threshold(chance) == "below 0.1"


def test_log2_ratios_are_formatted_as_ratios() -> None:
    shift = dataclasses.replace(made_answer(), unit="log2 ratio", interval=Interval(2.0, 1.0, 3.0), threshold=1.0)
    assert format_effect(shift) == "4.00 (97.5%: 2.00 to 8.00) times"
    assert format_threshold(shift) == "below 2"
    alone = dataclasses.replace(shift, interval=Interval(2.0, -math.inf, math.inf))
    assert format_effect(alone) == "4.00 (one seed: no interval) times"
    far = dataclasses.replace(shift, interval=Interval(5000.0, 2.0, 9000.0))
    assert format_effect(far) == "inf (97.5%: 4.00 to inf) times"


def test_failed_parts_are_named() -> None:
    against = found("it is warm", "contradicted", 2.0, 3.0, 1.0)
    held, unsure = found("it is blue", "supported", 0.0, 0.1, 1.0), found("it is old", "inconclusive", 0.0, 2.0, 1.0)
    both = reported(verdict="contradicted", answers=(held, against, unsure))
    assert both.failed_parts == ["Does not hold: it is warm.", "Open: it is old."]
    assert reported(verdict="inconclusive", answers=(held, unsure)).failed_parts == ["Open: it is old."]
    assert reported(answers=(held, held)).failed_parts == []
    assert reported(verdict="inconclusive", answers=(unsure,)).failed_parts == []  # it is the claim itself


def test_failed_parts_follow_the_meaning_of_the_verdict() -> None:
    first, second = made_outcome().answers
    unsure = made_outcome(verdict="inconclusive", answers=(dataclasses.replace(first, verdict="inconclusive"), second))
    for text in everywhere(unsure):
        meaning, open_part = text.index("Try more seeds."), text.index("Open: rms is at most 0.1 behind.")
        assert meaning < open_part < text.index("figures/" if "figures/" in text else "<figure")


def test_deciding_answer_is_shown_with_its_question() -> None:
    page, readme = everywhere(made_outcome())
    assert "<td>rms is at most 0.1 behind <b>0.0100 (97.5%: " in page
    assert "| rms is at most 0.1 behind: 0.0100 (97.5%: " in readme


def test_backticks_become_code_elements() -> None:
    page, readme = everywhere(made_outcome(), remark="as `norm <b>` does")
    assert "as <code>norm &lt;b&gt;</code> does" in page
    assert "as `norm <b>` does" in readme


def test_printed_page_has_the_learning_rates() -> None:
    page, _ = everywhere(made_outcome())
    printed = re.findall(r'<p class="faint printed">(.*?)</p>', page)
    assert printed[0] == "Learning rates used: layer 0.0032, rms 0.01. Tried: 0.001, 0.003, 0.01."
    assert not any("rates used" in words for words in re.findall("printed.*", lab_page([(made_claim(), UNTUNED)])))


UNTUNED = made_outcome(tuned={})


def everywhere(outcome: Outcome, **changes: Any) -> list[str]:
    """The page and the README of an outcome; the claim may have changed since."""
    pairs = [(made_claim(**changes), outcome)]
    return [lab_page(pairs), lab_markdown(pairs)["README.md"]]


def test_tables_state_the_actual_confidence() -> None:
    for text in everywhere(made_outcome()):
        assert "0.0100 (97.5%: " in text
        assert "0.0100 (every seed: " in text
        assert "effect (95%" not in text
        assert "at 95%; the verdict uses the wider ones below" in text  # the bars of the charts are narrower
    (one, _), asked = made_outcome().answers, made_claim().experiment.questions
    alone = made_outcome(answers=(dataclasses.replace(one, confidence=0.95),))
    for text in everywhere(alone, questions=lambda budget: asked(budget)[:1]):
        assert "the verdict uses the wider ones below" not in text


def test_runs_no_better_than_a_uniform_guess_are_counted() -> None:
    runs = made_runs({"rms": (True, False, True, False), "layer": (False,) * 4})
    for text in (*everywhere(made_outcome(runs=runs)), " ".join(notices(made_outcome(runs=runs)))):
        assert "Runs no better than a uniform guess, scored as a uniform guess: 2 of 4 with rms." in text
    assert not any("guessing" in notice for notice in notices(made_outcome()))


def test_learning_rate_at_the_edge_is_reported() -> None:
    for text in everywhere(made_outcome()):
        shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
        assert "a better one may lie beyond: rms (0.01)." in shown
    assert notices(made_outcome(tuned={})) == []


def test_interpolated_and_shared_learning_rates_are_in_the_table() -> None:
    outcome = made_outcome(tuned={"layer": made_outcome().tuned["layer"]})
    page = lab_page([(made_claim(), outcome)])
    assert "<td>layer</td><td>2.40</td><td><b>2.10</b></td><td>2.30</td><td>0.0032</td>" in page
    assert "<td>rms</td><td>-</td><td>-</td><td>-</td><td>0.01</td>" in page


def test_outdated_outcome_is_marked_and_shows_no_current_texts() -> None:
    now = made_claim(rule="Supported if the moon is full.")
    for text in everywhere(made_outcome(), rule=now.rule):
        assert text.count(OUTDATED) == 2  # in the table and in the section
        assert now.supported not in text
        assert now.rule not in text
    assert OUTDATED in format_claims([(now, made_outcome())])
    assert OUTDATED in " ".join(format_outcomes([(now, made_outcome())]).split())
    for text in (*everywhere(made_outcome()), format_claims([(made_claim(), made_outcome())])):
        assert OUTDATED not in text


def test_outdated_verdicts_are_counted_separately() -> None:
    page = lab_page([(made_claim(rule="another"), made_outcome()), (made_claim(), made_outcome())])
    assert re.findall(r"<dt>(\w+)</dt><dd>(\d)</dd>", page) == [
        ("supported", "1"),
        ("contradicted", "0"),
        ("inconclusive", "0"),
        ("outdated", "1"),
    ]


def test_withdrawn_claim_shows_metrics_and_reason_but_no_verdict() -> None:
    outcome, why = made_outcome(), "The measure was wrong."
    claim = made_claim(withdrawn=why)
    for text in everywhere(outcome, withdrawn=why):
        assert text.count(why) == 2  # in the table and in the section
        assert WITHDRAWN in text.lower()
        assert claim.supported not in text
        assert "parts hold" not in text
        assert "✓" not in text
        assert format_effect(outcome.answers[0]) in text
    listed = " ".join(format_claims([(claim, outcome)]).split())
    told = " ".join(format_outcomes([(claim, outcome)]).split())
    assert f"– {WITHDRAWN}" in listed
    assert "– withdrawn 1 made-up to be redone: The measure was wrong." in told
    for text in (listed, told):
        assert why in text
        assert "supported" not in text
    page = lab_page([(claim, outcome), (made_claim(number=2), outcome)])
    assert re.findall(r"<dt>(\w+)</dt><dd>(\d)</dd>", page)[0] == ("supported", "1")
    assert ("withdrawn", "1") in re.findall(r"<dt>(\w+)</dt><dd>(\d)</dd>", page)


def test_every_verdict_shows_how_many_parts_hold() -> None:
    first, second = made_outcome().answers
    mixed = made_outcome(answers=(dataclasses.replace(first, verdict="contradicted"), second), verdict="contradicted")
    for text in (
        *everywhere(mixed),
        format_claims([(made_claim(), mixed)]),
        format_outcomes([(made_claim(), mixed)]),
    ):
        assert "1 of 2 parts hold" in text
    alone = made_outcome(answers=(first,))
    assert "1 of 1 part holds" in format_claims([(made_claim(), alone)])


def test_caveats_are_at_the_top() -> None:
    settings = {name: {**one, "batch": 4, "model": {"context": 8}} for name, one in made_outcome().settings.items()}
    runs = made_runs()
    metrics = {
        name: [{**run, "steps": 2 * (1 + place)} for run in runs.metrics[name]] for place, name in enumerate(settings)
    }
    outcome = made_outcome(settings=settings, runs=dataclasses.replace(runs, metrics=metrics))
    claims = [
        made_claim(revised="the threshold was on the answer", first_verdict="contradicted"),
        made_claim(number=2, revised="a part of its design"),
        made_claim(number=3, withdrawn="It was wrong."),
    ]
    found = [(claim, outcome) for claim in claims]
    for text, begins in ((lab_page(found), "<table"), (lab_markdown(found)["README.md"], "| | claim")):
        top = text[: text.index(begins)]
        assert "2 of these 3 designs were changed after a first run" in top
        assert "1 verdict changed afterwards: 1 (first contradicted)" in top
        assert "The verdict on claim 3 is withdrawn until redone" in top
        assert "saw 6.40 to 12.8 bytes per parameter" in top  # 2 steps of 4 x 8 bytes, and 4 steps
        below = text[len(top) :]
        assert "Changed after a first run with seeds 0 to 4: the threshold was on the answer." in below
        assert "The verdict of the first run was: contradicted." in below
    assert caveats([(made_claim(), made_outcome())]) == {}


@pytest.mark.parametrize(
    "charts", [made_claim().experiment.charts, lambda runs: runs.metrics["rms"], lambda runs: 1 / 0]
)
def test_renamed_variants_do_not_break_a_report(charts: Any) -> None:
    outcome = made_outcome()
    runs = dataclasses.replace(
        outcome.runs, metrics={name.upper(): metrics for name, metrics in outcome.runs.metrics.items()}
    )
    settings = {name.upper(): one for name, one in outcome.settings.items()}
    for text in everywhere(made_outcome(runs=runs, settings=settings, tuned={}), charts=charts):
        assert "cannot be drawn by the current claim" in text
        assert OUTDATED in text


def test_training_text_is_named() -> None:
    own = {"name": "my.txt", "sha256": "0123456789abcdef" * 4}
    settings = {name: {**one, "text": own} for name, one in made_outcome().settings.items()}
    for text in everywhere(made_outcome(settings=settings)):
        assert "rained on my.txt (sha256 0123456789ab)" in text
    for text in everywhere(made_outcome()):
        assert "rained on the built-in stories" in text
    assert describe_text(made_outcome(settings={"a": {"width": 3}})) == ""


def test_method_states_what_the_intervals_exclude() -> None:
    for text in everywhere(made_outcome()):
        for words in ("from 1000 on", "from 100 on", "is not part of the intervals", "nothing about other data"):
            assert words in text


def test_terminal_shows_budget_seeds_and_failures() -> None:
    listed = format_claims([(made_claim(), made_outcome(seconds=265.7))])
    assert "made-up                  trained   ✓ supported, 2 of 2 parts hold\n     quick, 4 seeds, 266 s\n" in listed
    assert "CPU seconds of one core" in listed
    assert "made-up                  trained   takes minutes\n" in format_claims([(made_claim(), None)])
    assert "made-up                  trained   ! damaged\n" in format_claims([(made_claim(), FileError("damaged"))])
    lines = format_outcomes([(made_claim(), ValueError("broken\nfix: mend it"))]).splitlines()
    assert lines == ["! failed         1  made-up", f"{'':20}broken"]


@pytest.mark.parametrize("error", [KeyError(), ValueError("")])
def test_error_without_message_is_shown_by_its_type(error: Exception) -> None:
    assert type(error).__name__ in format_outcomes([(made_claim(), error)])
