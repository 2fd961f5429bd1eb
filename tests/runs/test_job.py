"""A torchrun job finds the run that it has created, whoever started it again."""

from pathlib import Path

import pytest

from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runs.job import mark_job, run_of_this_job
from normscope.storage.safe_folder import SafeFolder


@pytest.mark.parametrize(
    ("created", "started", "restarts", "continues"),
    [
        ("books", "books", "1", True),
        ("books", "books", "0", True),  # because a machine has joined, or the scheduler has requeued it
        ("books", "stories", "1", False),
        ("none", "none", "1", True),  # without --rdzv-id, the name is that of the torchrun process
        ("none", "none", "0", False),
    ],
)
def test_named_job_continues_its_run_and_another_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, created: str, started: str, restarts: str, continues: bool
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", created)
    mark_job(SafeFolder(folder))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", started)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    assert run_of_this_job([tmp_path, folder]) is None  # its creation was interrupted
    (folder / MANIFEST_NAME).touch()
    assert run_of_this_job([tmp_path, folder]) == (folder if continues else None)
