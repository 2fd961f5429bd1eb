"""A torchrun job finds the run that it has created, whoever started it again."""

import re
from pathlib import Path

import pytest

from normscope.errors import ConfigError
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runs.job import job_arguments, mark_job, run_of_this_job
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
    mark_job(SafeFolder(folder), {})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", started)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    assert run_of_this_job([tmp_path, folder], {}) is None  # its creation was interrupted
    (folder / MANIFEST_NAME).touch()
    assert run_of_this_job([tmp_path, folder], {}) == (folder if continues else None)


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"depth": 4, "lr": 0.01}, None),
        ({"depth": 6, "lr": 0.01}, "with depth=4, and is started again with depth=6\nfix: "),
        ({"lr": 0.01}, "with depth=4, and is started again with no depth\n"),
        ({"depth": 4, "seed": 1, "lr": 0.02}, "with no seed, and is started again with seed=1\n"),
    ],
)
def test_job_that_starts_again_with_other_arguments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: dict[str, object], difference: str | None
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "books")
    mark_job(SafeFolder(tmp_path), job_arguments({"depth": 4, "lr": 0.01, "preset": None}))
    (tmp_path / MANIFEST_NAME).touch()
    if difference is None:
        assert run_of_this_job([tmp_path], job_arguments(now)) == tmp_path
    else:
        with pytest.raises(ConfigError, match=re.escape(difference)):
            run_of_this_job([tmp_path], job_arguments(now))


def test_job_of_an_older_version_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "books")
    mark_job(SafeFolder(tmp_path), {})
    (tmp_path / MANIFEST_NAME).touch()
    assert run_of_this_job([tmp_path], {"depth": "4"}) == tmp_path
