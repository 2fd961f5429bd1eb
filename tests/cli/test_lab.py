"""`normscope lab`: claims are listed, run, gone on with, and made a page of."""

import dataclasses
import io
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from normscope.cli import main
from normscope.lab.catalog import all_claims, choose_claims
from normscope.lab.claim import get_budget
from normscope.lab.results.folders import outcome_path
from normscope.lab.results.outcome import load_outcome, save_outcome
from normscope.lab.running import workers
from normscope.lab.running.run_claims import FIRST_SEED
from tests.cli.running import entered, refused
from tests.lab.made import changed_claim
from tests.lab.workers import Here

RUN = ["lab", "run", "1", "--seeds", "2", "--workers", "1", "--out"]


class OneClaim(NamedTuple):
    """A lab in which the first claim was run with two seeds, and what the command wrote."""

    folder: Path
    out: str
    errors: str


@pytest.fixture(scope="module")
def one_claim(tmp_path_factory: pytest.TempPathFactory) -> OneClaim:
    folder, out, errors = tmp_path_factory.mktemp("lab"), io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors), pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "ProcessWorkers", Here)  # lab/running/test_workers.py has processes
        assert main([*RUN, str(folder)]) == 0
    return OneClaim(folder, out.getvalue(), errors.getvalue())


@pytest.fixture
def lab(one_claim: OneClaim, tmp_path: Path) -> Path:
    return shutil.copytree(one_claim.folder, tmp_path / "lab")


def test_all_claims_are_listed_with_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["lab", "list", "--out", str(tmp_path)], capsys)
    assert code == 0
    for claim in all_claims():
        assert f"{claim.number:>3}  {claim.name} " in out
        assert claim.statement in " ".join(out.split())
    assert not any(mark in out for mark in "✓✗")
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_folder_ones_own_verdicts_are_listed_or_else_the_published_ones(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab.parent)
    assert entered(["lab", "list"], capsys)[1].endswith("\nVerdicts from lab.\n")
    (lab.parent / "docs").mkdir()
    lab.rename(lab.parent / "docs" / "lab")
    code, out, errors = entered(["lab", "list"], capsys)
    assert (code, errors) == (0, "")
    assert "✓ supported" in out
    assert out.endswith("\nVerdicts from docs/lab.\n")
    assert '"verdict": "supported"' in entered(["lab", "list", "--json"], capsys)[1]
    assert "✓" not in entered(["lab", "list", "--out", "lab"], capsys)[1]  # a folder that is given is the one
    shutil.rmtree("docs")
    assert entered(["lab", "list"], capsys)[1].endswith("\nNo verdicts in lab yet.\n")


def test_a_claim_is_run_listed_and_reported(one_claim: OneClaim, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, errors = one_claim
    command = [*RUN, str(folder)]
    assert out.startswith("✓ supported      1  variance-by-depth\n")
    *lines, where, page = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert where == f"results: {folder / 'claims'}"
    assert page == f"report:  normscope lab report --out {folder}"
    assert errors.splitlines()[-1] == "6 of 6 trials"
    outcome = load_outcome(folder, "variance-by-depth")
    assert outcome is not None
    assert outcome.runs.seeds == (FIRST_SEED, FIRST_SEED + 1)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*.json")}
    assert len(kept) == 6
    assert entered(command, capsys) == (0, out, "")  # nothing is run twice
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trials/*.json")} == kept
    listed = entered(["lab", "list", "--out", str(folder)], capsys)[1]
    assert re.search(
        "variance-by-depth        exact     ✓ supported, 3 of 3 parts hold\n     quick, 2 seeds, [1-9][0-9]* s\n",
        listed,
    )
    assert max(map(len, listed.splitlines())) <= 80
    assert "older" not in listed
    code, out, errors = entered(["lab", "report", "--out", str(folder), "--markdown"], capsys)
    assert (code, errors) == (0, "")
    assert (folder / "report.html").is_file()
    made_by = f"`normscope lab run variance-by-depth --seeds 2 --out {folder}`"
    assert made_by in (folder / "README.md").read_text()
    assert "figures/variance-by-depth.svg" in (folder / "README.md").read_text()
    assert (folder / "figures" / "variance-by-depth.svg").read_text().startswith("<svg")


def broken(*_: Any) -> Any:
    raise RuntimeError("broken now")


def test_a_claim_that_fails_is_not_told_by_its_verdict_of_before(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*RUN, str(lab)]
    assert entered(command, capsys)[0] == 0
    (claim,) = choose_claims(["1"])
    monkeypatch.setattr("normscope.lab.commands.choose_claims", lambda names: [changed_claim(claim, questions=broken)])
    code, out, errors = entered(command, capsys)
    assert code == 1
    assert out == f"! failed         1  variance-by-depth\n{'':20}broken now\n"
    assert "error: variance-by-depth: broken now" in errors


def test_a_damaged_or_older_outcome_is_told_and_keeps_nobody_from_the_others(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = outcome_path(lab, "harmonic-glorot")
    damaged.write_text("[]")
    outcome = load_outcome(lab, "variance-by-depth")
    assert outcome is not None
    save_outcome(lab, dataclasses.replace(outcome, rule="Supported if the moon is full."))
    code, out, errors = entered(["lab", "list", "--out", str(lab)], capsys)
    assert code == 0
    assert re.search(
        "✓ supported, 3 of 3 parts hold\n     quick, 2 seeds, .* s\n     outdated: the claim has changed since",
        out,
    )
    assert out.count("seeds, ") == 1
    assert "harmonic-glorot          exact     ! damaged\n" in out
    assert "truncation-shrinks       exact     takes seconds\n" in out
    assert errors.startswith(f"note: skipping: {damaged} is not valid")
    assert f"fix: normscope lab run harmonic-glorot --out {lab}\n" in errors
    code, out, errors = entered(["lab", "report", "--out", str(lab)], capsys)
    assert code == 0
    assert str(damaged) in errors
    assert f"fix: normscope lab run variance-by-depth --out {lab}\n" in errors
    assert "variance-by-depth" in (lab / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lab", "run"], "name the claims to test, or use --all"),
        (["lab", "run", "1", "--all"], "name the claims to test, or use --all"),
        (["lab", "run", "variance-by-dept"], "did you mean 'variance-by-depth'?"),
        (["lab", "run", "31"], "unknown claim '31'"),
        (["lab", "run", "1", "--seeds", "0"], "--seeds 0 must be a positive integer"),
        (["lab", "run", "1", "--workers", "0"], "--workers 0 must be a positive integer"),
        (["lab", "run", "1", "--workers", "100000"], "fix: omit it for one worker per core"),
        (["lab", "run", "17", "--data", "nowhere.txt"], "nowhere.txt does not exist"),
        (["lab", "report", "--out", "nowhere"], "no results in nowhere\nfix: normscope lab run --all --out"),
        (["lab", "report"], "no results in lab\nfix: normscope lab run --all\n"),
        (["lab", "walk"], "unrecognized subcommand 'walk'"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(arguments, capsys)


def test_fewer_seeds_do_not_replace_more_without_a_word(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "1", "--out", str(lab), "--workers", "1", "--seeds"]
    assert "replaces" not in entered([*command, "2"], capsys)[2]
    assert "replaces" not in entered([*command, "2"], capsys)[2]
    code, _, errors = entered([*command, "1"], capsys)
    assert code == 0
    assert "note: this replaces results with a larger budget: variance-by-depth (quick, 2 seeds)" in joined(errors)


def test_who_does_not_look_at_the_text_is_told(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = lab / "my.txt"
    text.write_text("Once upon a time. " * 2000)
    code, _, errors = entered(
        ["lab", "run", "1", "--seeds", "1", "--workers", "1", "--data", str(text), "--out", str(lab)], capsys
    )
    assert code == 0
    assert "note: these claims do not train on text and ignore --data: variance-by-depth" in joined(errors)
    assert not any(
        "text" in settings for settings in choose_claims(["1"])[0].experiment.variants(get_budget("quick")).values()
    )


def joined(text: str) -> str:
    return " ".join(text.split())


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("list", "run", "report"):
        code, out, _ = entered(["lab", word, "--help"], capsys)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
    code, out, _ = entered(["lab"], capsys)
    assert code == 0
    assert all(word in out for word in ("list", "run", "report"))
    code, out, _ = entered(["lab", "run", "--help"], capsys)
    assert all(word in out for word in ("--all", "--budget", "--seeds", "--workers", "--ray", "--data"))
