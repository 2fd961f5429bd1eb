"""Page, README and terminal output of outcomes; no requests, no injection."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from normscope.lab.catalog import choose_claims
from normscope.lab.claim import Budget, Claim
from normscope.lab.report.page import lab_markdown, lab_page
from normscope.lab.report.terminal import format_outcomes
from normscope.lab.results.outcome import Outcome
from normscope.lab.results.verdict import VERDICTS, Verdict
from normscope.lab.running.run_claims import FIRST_SEED, claim_study
from normscope.lab.running.scheduler import TrialScheduler
from normscope.lab.running.trial import Store
from tests.lab.workers import Here, Silent

Found = list[tuple[Claim, Outcome]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    (claim,) = choose_claims(["variance-by-depth"])
    schedule: TrialScheduler[Outcome] = TrialScheduler(Store(tmp_path_factory.mktemp("lab")), Here(), Silent())
    outcome = schedule.run({claim.name: claim_study(claim, Budget("quick", 2))})[claim.name]
    return [(claim, outcome)]


def test_page_has_table_section_charts_and_intervals(found: Found) -> None:
    page = lab_page(found)
    (claim, outcome), *_ = found
    assert page.count(f'id="{claim.name}"') == 1
    assert f'href="#{claim.name}"' in page
    assert claim.rule in page
    assert f"seeds {FIRST_SEED} to {FIRST_SEED + 1}" in page
    assert claim.source in page
    assert page.count("<figure") == len(claim.experiment.charts(outcome.runs))
    assert page.count('class="forest') == len(outcome.answers)
    assert claim.supported in page
    assert claim.contradicted not in page


@pytest.mark.parametrize("verdict", VERDICTS)
def test_report_shows_the_meaning_of_the_verdict(found: Found, verdict: Verdict) -> None:
    (claim, outcome), *_ = found
    answers = tuple(dataclasses.replace(answer, verdict=verdict) for answer in outcome.answers)
    other = [(claim, dataclasses.replace(outcome, verdict=verdict, answers=answers))]
    for text in (lab_page(other), lab_markdown(other)["README.md"]):
        assert claim.meaning(verdict) in text
    assert verdict in format_outcomes(other)


def test_page_makes_no_requests(found: Found) -> None:
    page = lab_page(found)
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_texts_are_escaped(found: Found) -> None:
    (claim, outcome), *_ = found
    evil = dataclasses.replace(claim, statement="<script>alert(1)</script>", remark="a < b & c")
    page = lab_page([(evil, outcome)])
    assert "<script>alert" not in page
    assert "a &lt; b &amp; c" in page


def test_claims_may_break_across_printed_pages(found: Found) -> None:
    page = lab_page(found)
    printed = page[page.index("@media print") : page.index("</style>")]
    whole = re.findall(r"([^{}]*)\{[^}]*break-inside: avoid", printed)
    assert [re.sub(r"\s+", " ", rule).strip() for rule in whole] == ["tr, figure, .tiles"]


def test_readme_figures_are_separate_svg_files(found: Found, tmp_path: Path) -> None:
    files = lab_markdown(found)
    metrics = [name for name in files if name.endswith(".svg")]
    assert metrics == ["figures/variance-by-depth.svg", "figures/variance-by-depth-2.svg"]
    for name in metrics:
        root = ElementTree.fromstring(files[name])
        assert root.tag.endswith("svg")
        assert f"({name})" in files["README.md"]
