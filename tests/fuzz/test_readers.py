"""A few mutated files for each reader (`python -m tests.fuzz --only readers` reads many)."""

import random
from pathlib import Path

import pytest

from tests.fuzz.corruption import flip_bit
from tests.fuzz.readers import SAMPLES, Sample, read_mutated, reader_trial
from tests.fuzz.trial import BAD, run_trial


@pytest.mark.parametrize("kind", SAMPLES)
def test_mutated_files_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    trial = reader_trial(random.Random(7), kind)
    outcome, result = run_trial(trial, tmp_path / "trial")
    assert outcome not in BAD, f"{outcome}: {trial.description}\n{result.errors}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("seed", range(10))
def test_many_mutated_files(tmp_path: Path, kind: str, seed: int) -> None:
    trial = reader_trial(random.Random(100 + seed), kind)
    outcome, result = run_trial(trial, tmp_path / "trial")
    assert outcome not in BAD, f"{outcome}: {trial.description}\n{result.errors}"


def test_an_error_that_is_not_ours_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def read(folder: Path) -> int:
        return 1 // ((folder / "file").read_bytes() == b"content")

    sample = Sample("file", (flip_bit,), lambda folder: (folder / "file").write_bytes(b"content"), read)
    with pytest.raises(AssertionError, match="flip_bit: ZeroDivisionError"):
        read_mutated(sample, random.Random(1))
