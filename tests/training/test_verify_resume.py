"""The proof that going on is exact: from where it is taken, and that it would be seen if it failed."""

import sys
from pathlib import Path

import pytest

from normscope.errors import CheckpointError
from normscope.runs.run import Run
from normscope.training import verify_resume as verify
from normscope.training.loop import train_run
from normscope.training.verify_resume import ResumeCheck, verify_resume
from tests.training.small_run import new_run


def test_where_the_proof_begins(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=30, save_every=5)
    assert verify._span(run) == (0, 6)
    train_run(run, until=10)
    assert verify._span(run) == (10, 6)
    train_run(run, until=25)  # too near the end for the whole of it
    assert verify._span(run) == (0, 6)
    assert "has 1 steps, but" in str(_refusal(tmp_path))


def _refusal(folder: Path) -> CheckpointError:
    (folder / "short").mkdir()
    with pytest.raises(CheckpointError) as refused:
        verify_resume(new_run(folder / "short", steps=1))
    return refused.value


def test_a_proof_in_words() -> None:
    assert str(ResumeCheck(3, 9, ())).startswith(
        "steps 3 to 9: passed. Weights, optimizer and RNG state are bitwise identical"
    )
    assert (
        str(ResumeCheck(3, 9, ("model.safetensors",))) == "steps 3 to 9: FAILED. These files differ: model.safetensors"
    )
    assert not ResumeCheck(3, 9, ("model.safetensors",)).passed


def in_this_process(run: Run, until: int, kill_after: float | None = None) -> float:
    """The resuming of the proof without a new process, for speed; tests/training/test_killed.py has the real one."""
    if kill_after is None:
        train_run(Run.open(run.folder), until=until)
    return 1.0


def test_the_run_is_only_read_and_copies_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_resume", in_this_process)
    run = new_run(tmp_path, steps=20, save_every=4)
    train_run(run, until=4)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    told: list[str] = []
    proof = verify_resume(run, log=told.append)
    assert (proof.begin, proof.end, proof.passed) == (4, 16, True)
    assert told[0] == "training from step 4 to 16 without interruption"
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(run: Run, until: int, kill_after: float | None = None) -> float:
        in_this_process(run, until, kill_after)
        step = run.checkpoints.last()
        if run.folder.name == "interrupted" and step == 6:  # as if the optimizer state had not been saved
            tensors, facts = run.checkpoints.load(step)
            forgotten = {name: tensor.zero_() for name, tensor in tensors["optimizer"].items()}
            run.checkpoints.save(step, {**tensors, "optimizer": forgotten}, facts)
        return 1.0

    monkeypatch.setattr(verify, "_resume", forgetful)
    proof = verify_resume(new_run(tmp_path, steps=20))
    assert proof.different == ("model.safetensors", "optimizer.safetensors")


@pytest.mark.slow
def test_a_killed_process_and_one_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half of the proof is not what is tested here, and needs no process."""
    real, asked = verify._resume, list[tuple[int, bool]]()

    def resume(run: Run, until: int, kill_after: float | None = None) -> float:
        if run.folder.name == "interrupted" and run.checkpoints.last() == 16:
            asked.append((until, kill_after is not None))
            seconds = real(run, until, 0.5 if kill_after is not None else None)  # while it still starts
            assert run.checkpoints.last() == (16 if kill_after is not None else 22)
            return seconds
        return in_this_process(run, until, kill_after)

    monkeypatch.setattr(verify, "_resume", resume)
    run = new_run(tmp_path, steps=30, save_every=10)
    train_run(run, until=10)
    before = sorted(path.name for path in run.folder.rglob("*"))
    proof = verify_resume(run)
    assert (proof.begin, proof.end, proof.passed) == (10, 22, True)
    assert asked == [(22, True), (22, False)]
    assert sorted(path.name for path in run.folder.rglob("*")) == before


@pytest.mark.skipif(sys.platform == "win32", reason="it has a shell script in place of Python")
def test_a_run_that_cannot_go_on_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "python"
    refusing.write_text('#!/bin/sh\necho "error: cannot go on: $*" >&2\nexit 2\n')
    refusing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(refusing))
    with pytest.raises(CheckpointError, match=r"^the run cannot be resumed: cannot go on: .* resume .* --until"):
        verify_resume(new_run(tmp_path, steps=20))


@pytest.mark.exhaustive  # cli/test_resume.py has the refusal in the default suite
def test_a_run_of_another_text_says_so(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=20)
    (tmp_path / "text.txt").write_text("quite another text")
    with pytest.raises(CheckpointError, match=r"the run cannot be resumed: source text changed since .*text.txt"):
        verify_resume(run)
