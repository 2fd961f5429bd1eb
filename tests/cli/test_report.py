"""`normscope report`: made anew from what the folder holds."""

from pathlib import Path

import pytest

from tests.cli.running import refused, typed
from tests.training.small_run import new_run


def test_a_report_is_written_anew(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trained_run / "report.html"
    before = path.read_text()
    path.unlink()
    assert typed(f"report {trained_run}", capsys) == (0, f"wrote {path}\n", "")
    assert path.read_text() == before


def test_what_is_no_run_is_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is not a run" in refused(["report", "nothing"], capsys)


def test_a_run_that_has_not_begun_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = refused(["report", str(new_run(tmp_path).folder)], capsys)
    assert "metrics.jsonl does not exist" in errors
    assert "fix: pass the folder of a run that has started" in errors
