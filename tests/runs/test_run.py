"""Run folders: created once, opened again, and errors for folders that changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.errors import ArgumentTypeError, CheckpointError, ConfigError, FileError
from normscope.runs.checkpoints import Checkpoints
from normscope.runs.checksummed_folder import write_manifest
from normscope.runs.config import check_same_config
from normscope.runs.read_source import load
from normscope.runs.run import Run
from normscope.storage.lock import locked
from normscope.storage.safe_folder import SafeFolder
from normscope.training.loop import train_run
from tests.training.small_run import new_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A trained run that tests only read."""
    run = new_run(tmp_path_factory.mktemp("run"), steps=6, save_every=2, eval_every=6)
    train_run(run)
    return run


def test_a_run_round_trips(run: Run) -> None:
    again = Run.open(run.folder)
    assert again.config == run.config
    assert again.checkpoints.steps() == [4, 6]
    check_same_config(again.config, run.config.to_json())


def test_a_run_folder_can_be_moved(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=2)
    moved = run.folder.rename(tmp_path / "elsewhere")
    assert len(Run.open(moved).corpus(verify=True).train) > 0


@pytest.mark.parametrize(("which", "step"), [("best", 6), ("last", 6), ("4", 4), (4, 4)])
def test_load_model_by_name_or_step(run: Run, which: str | int, step: int) -> None:
    model, found = run.load_model(which)
    assert (found, model.training) == (step, False)
    tensors, _ = run.checkpoints.load(step)
    assert all(torch.equal(value, tensors["model"][name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("which", ["999", "first", "-4", "", 2])
def test_a_missing_checkpoint_error_lists_the_others(run: Run, which: str | int) -> None:
    with pytest.raises(CheckpointError, match=r"has no checkpoint '.*'\nfix: choose one of best, last, 4, 6"):
        run.load_model(which)


def test_run_without_checkpoint_raises(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no checkpoint yet\nfix: normscope resume"):
        run.load_model()
    with (
        locked(run.folder),
        pytest.raises(CheckpointError, match=r"it is still training\nfix: wait for the first checkpoint, at step 7"),
    ):
        run.load_model()
    (run.folder / "nan").mkdir()
    with pytest.raises(
        CheckpointError, match=r"it hit a NaN or Inf first\nfix: start a new run with a lower --matrix-lr"
    ):
        run.load_model()


def test_tokenizer_is_that_of_the_run(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    corpus = run.corpus().tokenizer
    shutil.rmtree(run.folder / "data")
    assert run.tokenizer().encode("7 bottles").tolist() == corpus.encode("7 bottles").tolist()
    with pytest.raises(FileError, match=r"the corpus of .* is no longer in .*data\nfix: move it back"):
        run.corpus()
    path = run.folder / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(CheckpointError, match=r"tokenizer.json changed since this run started\nfix: copy it"):
        run.tokenizer()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing\nfix: copy it from .*data"):
        run.tokenizer()


def test_a_run_is_not_created_twice(run: Run) -> None:
    with pytest.raises(FileError, match=r"already contains a run\nfix: normscope resume"):
        Run.create(run.folder, run.config, run.folder / "tokenizer.json")


def test_a_folder_that_cannot_be_created_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot create the folder .*below: Not a directory\nfix: choose another"):
        Run.create(tmp_path / "file" / "below", run.config, run.folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("nothing", "nothing is not a run: it does not exist"),
        ("empty", "empty is not a run: it has no config.json"),
        ("file", "file is not a run: it is not a folder"),
    ],
)
def test_a_folder_that_is_not_a_run_is_an_error(tmp_path: Path, folder: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in (tmp_path / folder, str(tmp_path / folder)):
        with pytest.raises(FileError, match=rf"{words}\nfix: pass a folder"):
            Run.open(name)


@pytest.mark.parametrize("folder", [None, 5, b"run", ["run"]])
def test_an_invalid_path_is_an_error(folder: Any) -> None:
    for use in (load, Run.open):
        with pytest.raises(ArgumentTypeError, match=r"must be a path \(str or Path\), but got"):
            use(folder)


@pytest.mark.parametrize("checkpoint", [None, 6.0, True, ["best"], b"best"])
def test_an_invalid_checkpoint_name_is_an_error(run: Run, checkpoint: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="checkpoint must be 'best', 'last' or a step number, but got"):
        load(run.folder, checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint", ["5", -1, "", "\u0664", "best ", 10**30])
def test_a_missing_checkpoint_is_an_error(run: Run, checkpoint: Any) -> None:
    with pytest.raises(CheckpointError, match=r"has no checkpoint .*\nfix: choose one of best, last, 4, 6"):
        load(run.folder, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "expected `object`, got `array`"),
        ("{", "Expecting property name"),
        ("\x00", "Expecting value"),
        ('{"format": 99}', "has format 99, but this version of normscope reads formats 1 to 3"),
        ('{"format": 1}', "object missing required field `normscope`"),
        ('{"format": 1, "corpus": 5}', r"expected `object \| null`, got `int` at `corpus`"),
    ],
)
def test_an_invalid_config_is_an_error(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.json").write_text(content)
    write_manifest(SafeFolder(tmp_path), ["config.json"])
    with pytest.raises(ConfigError, match=rf"config.json is not .*{words}.*\nfix: (restore it|update)"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("train", {"color": "red"}, "unknown setting 'color'"),
        ("train", {"steps": -3}, "steps=-3"),
        ("model", {"color": "red"}, "unknown setting 'color'"),
        ("model", {"depth": 0}, "depth=0"),
    ],
)
def test_an_invalid_setting_is_named(
    run: Run, tmp_path: Path, section: str, change: dict[str, Any], words: str
) -> None:
    content = run.config.to_json()
    content[section] |= change
    (tmp_path / "config.json").write_text(json.dumps(content))
    write_manifest(SafeFolder(tmp_path), ["config.json"])
    with pytest.raises(ConfigError, match=words):
        Run.open(tmp_path)


def test_every_changed_setting_is_named(run: Run) -> None:
    saved = run.config.to_json()
    saved["train"]["seed"], saved["model"]["norm"]["eps"], saved["normscope"] = 7, 0.5, "0.0.1"
    with pytest.raises(CheckpointError) as refused:
        check_same_config(run.config, saved)
    assert "model.norm.eps was 0.5 and is" in str(refused.value)
    assert "train.seed was 7 and is 0" in str(refused.value)
    assert "normscope was" not in str(refused.value)  # a newer version may resume


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_checkpoint_dropped_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """The training goes on at the same time, and the newest is taken instead."""
    run = new_run(tmp_path, steps=9, save_every=2, eval_every=2)
    train_run(run, until=2)
    true_load, other = Checkpoints.open, Run.open(run.folder)

    def load(self: Checkpoints, step: int) -> Any:
        if step == 2 and self is run.checkpoints:
            train_run(other, until=8)
            shutil.rmtree(self.path(2), ignore_errors=True)
        return true_load(self, step)

    monkeypatch.setattr(Checkpoints, "open", load)
    assert run.load_model(which)[1] == {"best": run.checkpoints.best(), "last": 8}[which] != 2
    (run.checkpoints.path(8) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged"):  # damage still raises
        run.load_model("last")
