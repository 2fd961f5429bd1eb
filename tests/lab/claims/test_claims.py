"""The claims: complete, numbered, and in line with the results in docs/lab."""

import json
from pathlib import Path

import pytest

from normscope.errors import ConfigError
from normscope.lab.catalog import FOLDER, all_claims, choose_claims, read_claim_texts
from normscope.lab.claim import Claim, get_budget
from normscope.lab.report.page import lab_markdown, lab_page
from normscope.lab.results.outcome import Outcome, load_outcome
from normscope.lab.running.run_claims import claim_study
from normscope.lab.running.scheduler import TrialScheduler
from normscope.lab.running.trial import LabTrial, Store, function_path, run_trial
from tests.lab.workers import Here, Silent
from tests.pairs import chiefly

RESULTS = Path(__file__).parents[3] / "docs" / "lab"
QUICK = get_budget("quick")
EXACT = [claim for claim in all_claims() if claim.kind == "exact"]
by_name = pytest.mark.parametrize("claim", all_claims(), ids=lambda claim: claim.name)


def test_claims_are_numbered_and_have_two_files_each() -> None:
    assert [claim.number for claim in all_claims()] == list(range(1, len(all_claims()) + 1))
    for suffix in ("py", "toml"):
        files = {path.stem for path in FOLDER.rglob(f"*.{suffix}")} - {"__init__"}
        assert {claim.name.replace("-", "_") for claim in all_claims()} == files


def test_claims_are_chosen_by_name_or_number() -> None:
    assert [claim.number for claim in choose_claims(["17", "variance-by-depth", "1"])] == [1, 17]


TEXTS = """
number = 31
kind = "exact"
statement = "RMSNorm keeps the sign."
source = "Notes on norms."
design = "One layer."
rule = \"""
Supported if the error
is below {TOLERANCE:.0%}.\"""
supported = "Use it."
contradicted = "Do not."
inconclusive = "Try again."
"""


def test_texts_are_read_with_their_placeholders_filled(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(TEXTS)
    texts = read_claim_texts(path, {"TOLERANCE": 0.05})
    assert texts["rule"] == "Supported if the error is below 5%."
    assert (texts["number"], texts["remark"], texts["first_verdict"]) == (31, "", None)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("number = 31", "", "missing required field `number`"),
        ("number = 31", "number = '31'", "expected `int`, got `str` at `number`"),
        ("kind =", "extra = 'a'\nkind =", "unknown field `extra`"),
        ('kind = "exact"', 'kind = "proven"', "at `kind`"),
        ("{TOLERANCE:.0%}", "{TOLERENCE:.0%}", "unknown placeholder {TOLERENCE}"),
        ("{TOLERANCE:.0%}", "{TOLERANCE:q}", "is not valid: "),
        ("number = 31", "number = ", "is not valid: "),
    ],
)
def test_invalid_texts_are_refused(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(TEXTS.replace(before, after))
    with pytest.raises(ConfigError) as refused:
        read_claim_texts(path, {"TOLERANCE": 0.05})
    assert str(path) in str(refused.value)
    assert message in str(refused.value)


@by_name
def test_claim_is_complete_before_the_run(claim: Claim) -> None:
    words = (claim.statement, claim.design, claim.rule, *(claim.supported, claim.contradicted, claim.inconclusive))
    assert all(len(text.split()) >= 4 and text.endswith(".") for text in words)
    assert claim.source.endswith(".")
    for budget in (QUICK, get_budget("full")):
        assert len(claim.experiment.variants(budget)) >= 1
        assert json.loads(json.dumps(claim.experiment.variants(budget))) is not None
        assert claim.experiment.questions(budget)
    if claim.kind == "exact":
        assert all(question.every_seed for question in claim.experiment.questions(QUICK))


@by_name
def test_results_in_the_docs_are_of_the_current_claim(claim: Claim) -> None:
    outcome = load_outcome(RESULTS, claim.name)
    assert outcome is not None, f"fix: normscope lab run {claim.name} --out docs/lab"
    variants = json.loads(json.dumps(claim.experiment.variants(outcome.budget)))
    found = {name: dict(settings) for name, settings in outcome.settings.items()}
    for name, lr in outcome.runs.lrs.items():  # which the study has found
        variants[name]["lr"] = lr
    assert found == variants
    assert [answer.text for answer in outcome.answers] == [q.text for q in claim.experiment.questions(outcome.budget)]
    assert [answer.threshold for answer in outcome.answers] == [
        q.threshold for q in claim.experiment.questions(outcome.budget)
    ]
    assert claim.experiment.charts(outcome.runs)


@pytest.mark.parametrize("claim", EXACT, ids=lambda claim: claim.name)
@pytest.mark.parametrize("seeds", chiefly([2], [None]), ids=["two-seeds", "all-seeds"])
def test_exact_claim_has_the_verdict_in_the_docs(claim: Claim, seeds: int | None, tmp_path: Path) -> None:
    schedule: TrialScheduler[Outcome] = TrialScheduler(Store(tmp_path), Here(), Silent())
    found = schedule.run({claim.name: claim_study(claim, get_budget("quick", seeds))})[claim.name]
    known = load_outcome(RESULTS, claim.name)
    assert known is not None
    assert found.verdict == known.verdict
    assert [answer.verdict for answer in found.answers] == [answer.verdict for answer in known.answers]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["rmsnorm-vs-layernorm"])
def test_trained_claim_has_the_losses_in_the_docs(name: str) -> None:
    """Every variant with its first seed. Other processors round differently, which training amplifies."""
    (claim,) = choose_claims([name])
    known = load_outcome(RESULTS, name)
    assert known is not None
    for variant, settings in known.settings.items():
        again = run_trial(LabTrial(function_path(claim.experiment.measure), settings, 0)).metrics
        assert again["loss"] == pytest.approx(known.runs.metrics[variant][0]["loss"], abs=0.05)


def test_page_and_readme_in_the_docs_match_the_results() -> None:
    found = [(claim, outcome) for claim in all_claims() if (outcome := load_outcome(RESULTS, claim.name))]
    folder = Path("docs/lab")  # as `make lab` calls it
    files = lab_markdown(found, folder)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == files["README.md"], "fix: make lab"
    assert (RESULTS / "report.html").read_text(encoding="utf-8") == lab_page(found, folder), "fix: make lab"
    assert (RESULTS / "report.html").stat().st_size < 3_000_000
    for name, text in files.items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text
