"""`normscope runs` lists the runs in a folder."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import refused, typed


def test_a_table_of_runs(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = typed(f"runs {trained_run.parent}", capsys)
    assert (code, errors) == (0, "")
    heading, line = out.splitlines()
    assert heading.split()[:3] == ["RUN", "STATUS", "MODEL"]
    assert line.split()[:5] == [str(trained_run), "done", "2", "x", "16"]
    assert " 4/4 " in line


def test_json(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (trained_run, trained_run.parent):
        _, out, _ = typed(f"runs {folder} --json", capsys)
        (run,) = json.loads(out)
        assert (run["path"], run["status"], run["step"], run["steps"]) == (str(trained_run), "done", 4, 4)
        assert run["best_loss"] > 0
        assert run["bytes"] > run["parameters"] * 4


def test_a_damaged_run_is_skipped_with_a_note(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, tmp_path / "good")
    shutil.copytree(trained_run, tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text("{}")
    code, out, errors = typed(f"runs {tmp_path} --json", capsys)
    assert code == 0
    assert [run["path"] for run in json.loads(out)] == [str(tmp_path / "good")]
    assert errors.startswith(f"note: skipping {tmp_path / 'bad'}: ")


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(f"runs {tmp_path}", capsys) == (0, f"No runs in {tmp_path}.\n", "")
    assert typed(f"runs {tmp_path} --json", capsys) == (0, "[]\n", "")
    assert "no such folder" in refused(["runs", str(tmp_path / "gone")], capsys)
