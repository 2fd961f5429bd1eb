"""`normscope resume`: on from where it was, from elsewhere, up to somewhere."""

import json
import os
import shutil
from pathlib import Path

import pytest

from normscope.cli import main
from normscope.runs.extension import Extension, write_extension
from normscope.runs.run import Run
from tests.cli.running import SMALL, entered, refused, typed, write_text
from tests.training.small_run import last_sums


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and, in the folder r, a run of six steps; to be copied."""
    folder = tmp_path_factory.mktemp("six-steps")
    write_text(folder)
    with open(os.devnull, "w") as nowhere, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", nowhere)
        patch.chdir(folder)
        assert main(["train", "milk.txt", "--out", "r", *SMALL, "6"]) == 0
    return folder


@pytest.fixture
def run(six_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    shutil.copytree(six_steps, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Run.open(Path("r"))


def test_it_goes_on_to_the_same_end(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    sums = last_sums(run)
    code, out, _ = typed("resume r --from-step 4 --until 5", capsys)
    assert (code, run.checkpoints.last()) == (0, 5)
    assert "resuming from step 4" in out
    assert "paused, everything saved: step 5 of 6" in out
    code, out, _ = typed("resume r", capsys)
    assert (code, last_sums(run)) == (0, sums)
    assert "done: step 6 of 6" in out
    assert Path("r/report.html").is_file()
    metrics = run.metrics.read_bytes()
    code, out, _ = typed("resume r", capsys)
    assert (code, last_sums(run), run.metrics.read_bytes()) == (0, sums, metrics)  # at its end it stays there
    assert out.startswith("r is done: all 6 steps are completed\nto train longer, use --steps; ")


def test_a_run_that_was_killed_before_its_last_validation_is_not_done(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:-1]))
    code, out, _ = typed("resume r", capsys)
    assert code == 0
    assert "validation at step 6" in out
    assert "done: step 6 of 6" in out


def test_what_is_dropped_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = typed("resume r --from-step 0 --until 1", capsys)[1]
    assert "resuming from step 0: later checkpoints are dropped (4, 6)" in out
    assert run.checkpoints.steps() == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "nothing is not a run: it does not exist\nfix: pass a folder written by `normscope train`"),
        ("milk.txt", "milk.txt is not a run"),
        ("r --until 0", "--until 0"),
        ("r --until -3", "--until -3"),
        ("r --until 5", "but the run is already at step 6\nfix: a later step, or --from-step"),
        ("r --steps 5", "--steps 5, but the run already has 6 steps\nfix: use the new total, more than 6"),
        ("r --steps 0", "--steps 0 must be a positive integer"),
        ("r --from-step 3", "use another checkpoint (4, 6): resume with --from-step"),
        ("r --parallel fsdp --from-step 4", "--parallel 'fsdp', but this process trains alone\nfix: --nproc N"),
        ("r --device nowhere --from-step 4", "--device 'nowhere' cannot be used here"),
        ("r --from-step -2", "--from-step -2 must be a non-negative integer"),
    ],
)
def test_what_cannot_go_on_is_refused(run: Run, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert message in refused(["resume", *words.split()], capsys)
    assert run.checkpoints.steps() == [4, 6]


def test_a_changed_text_and_config_are_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entered(["train", "milk.txt", "--out", "r", *SMALL, "6"], capsys)[0] == 0  # a copy has its text elsewhere
    text = Path("milk.txt").read_text()
    Path("milk.txt").write_text(text + "more")
    assert "source text changed since this run started: milk.txt" in refused(
        ["resume", "r", "--from-step", "4"], capsys
    )
    Path("milk.txt").unlink()
    assert "source text not found: milk.txt" in typed("resume r --from-step 4", capsys)[1]
    content = json.loads(Path("r/config.json").read_text())
    content["train"]["steps"] = 60
    Path("r/config.json").write_text(json.dumps(content))
    assert "train.steps was 6 and is 60" in refused(["resume", "r"], capsys)


def test_a_proof_that_fails_is_told_by_the_exit_code(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from normscope.training import verify_resume

    for different, code in (((), 0), (("model.safetensors",), 1)):
        proof = verify_resume.ResumeCheck(0, 6, different)
        monkeypatch.setattr(verify_resume, "verify_resume", lambda run, log, proof=proof: proof)
        assert typed("resume r --verify", capsys) == (code, f"{proof}\n", "")


def test_trackers_are_written(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    assert typed("resume r --from-step 4 --tensorboard", capsys)[0] == 0
    assert list(Path("r/tensorboard").iterdir())


@pytest.mark.parametrize(
    "words", ["--from-step 4", "--until 5", "--steps 9", "--device cpu", "--tensorboard", "--wandb offline"]
)
def test_a_proof_takes_no_other_options(run: Run, capsys: pytest.CaptureFixture[str], words: str) -> None:
    errors = refused(["resume", "r", "--verify", *words.split()], capsys)
    assert (
        f"--verify trains copies of the run, so {words.split()[0]} would have no effect\nfix: omit {words.split()[0]}"
        in errors
    )


def test_a_run_that_is_done_and_damaged_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.checkpoints.path(6) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    errors = refused(["resume", "r"], capsys)
    assert "model.safetensors is damaged: it has 100 bytes" in errors
    assert "fix: use another checkpoint (4): resume with --from-step" in errors


def test_a_run_is_extended(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    config = (run.folder / "config.json").read_bytes()
    code, out, _ = typed("resume r --steps 9 --until 8", capsys)
    assert (code, (run.folder / "config.json").read_bytes()) == (0, config)
    assert "extended from 6 to 9 steps" in out
    again = Run.open("r")
    assert (again.config.train.steps, again.checkpoints.last(), again.is_done()) == (9, 8, False)
    losses = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    schedule = again.config.train.lr_schedule()
    scales = {one["step"]: one["lr_scale"] for one in losses if one["kind"] == "step"}
    assert scales[8] == schedule.lr_scale(7)  # of the longer run
    assert "done: step 9 of 9" in typed("resume r", capsys)[1]
    sums = last_sums(again)
    assert typed("resume r --from-step 8", capsys)[0] == 0
    assert last_sums(again) == sums  # an extended run resumes to the same bits
    assert "done: step 11 of 11" in typed("resume r --steps 11", capsys)[1]
    assert Run.open("r").extension is not None
    assert "extended from 6 to 9 to 11 steps" in str(Run.open("r").extension)


def test_a_damaged_extension_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("resume r --steps 9", capsys)[0] == 0
    path = run.folder / "extension.json"
    path.write_text(path.read_text().replace("9", "99", 1))
    assert "extension.json" in refused(["sample", "r"], capsys)


def test_the_end_before_an_extension_keeps_its_validation(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def validated() -> dict[int, float]:
        events = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        return {one["step"]: one["loss"] for one in events if one["kind"] == "validation"}

    before = validated()
    assert typed("resume r --steps 9", capsys)[0] == 0
    assert validated()[6] == before[6]
    assert typed("resume r --steps 9", capsys)[0] == 0  # the same command again: nothing left to do
    assert "until 3" in refused(["resume", "r", "--steps", "20", "--until", "3"], capsys)
    assert Run.open("r").config.train.steps == 9  # what is refused extends nothing


def test_the_extension_of_another_run_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_extension(run.safe_folder, Extension(steps=4, before=[3]))
    assert "does not extend this run of 6 steps" in refused(["resume", "r"], capsys)
