"""`normscope lab`: claims are listed, run, gone on with, and made a page of."""

from pathlib import Path

import pytest

from normscope.lab.catalogue import all_claims
from normscope.lab.outcome import load_outcome
from tests.cli.running import entered, refused


def test_all_claims_are_listed_with_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["lab", "list", "--out", str(tmp_path)], capsys)
    assert code == 0
    for claim in all_claims():
        assert f"{claim.number:>3}  {claim.name} " in out
        assert claim.statement in " ".join(out.split())
    assert not any(mark in out for mark in "✓✗")
    assert max(map(len, out.splitlines())) <= 80


def test_a_claim_is_run_listed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "1", "--out", str(tmp_path), "--seeds", "2", "--workers", "1"]
    code, out, errors = entered(command, capsys)
    assert code == 0
    assert out.startswith("✓ supported      1  variance-by-depth\n")
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert errors.splitlines()[-1] == "6 of 6 trials"
    outcome = load_outcome(tmp_path, "variance-by-depth")
    assert outcome is not None
    assert outcome.runs.seeds == (0, 1)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*.json")}
    assert len(kept) == 6
    assert entered(command, capsys)[:2] == (0, out)  # nothing is run twice
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*.json")} == kept
    assert (
        "variance-by-depth        exact     ✓ supported" in entered(["lab", "list", "--out", str(tmp_path)], capsys)[1]
    )
    code, out, _ = entered(["lab", "report", "--out", str(tmp_path), "--markdown"], capsys)
    assert code == 0
    assert (tmp_path / "report.html").is_file()
    assert "figures/variance-by-depth.svg" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "figures" / "variance-by-depth.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lab", "run"], "which claims?"),
        (["lab", "run", "1", "--all"], "which claims?"),
        (["lab", "run", "variance-by-dept"], "did you mean 'variance-by-depth'?"),
        (["lab", "run", "31"], "there is no claim '31'"),
        (["lab", "run", "1", "--seeds", "0"], "--seeds 0 must be a whole number above zero"),
        (["lab", "run", "1", "--workers", "0"], "--workers 0 must be a whole number above zero"),
        (["lab", "run", "17", "--text", "nowhere.txt"], "cannot read nowhere.txt"),
        (["lab", "report", "--out", "nowhere"], "there is no outcome in nowhere"),
        (["lab", "walk"], "lab has no 'walk'"),
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


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["lab"], capsys)
    assert code == 0
    assert all(word in out for word in ("list", "run", "report"))
    code, out, _ = entered(["lab", "run", "--help"], capsys)
    assert all(word in out for word in ("--all", "--budget", "--seeds", "--workers", "--ray", "--text"))
