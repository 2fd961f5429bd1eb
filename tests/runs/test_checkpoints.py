"""Which checkpoints are kept and deleted, and errors for damaged ones."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from normscope.errors import CheckpointError
from normscope.runs.checkpoints import Checkpoints


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder / "checkpoints")
    for step in steps:
        checkpoints.save(step, {"model": {"w": torch.full((2,), float(step))}}, {"step": step})
    return checkpoints


def test_no_checkpoints_before_the_first_save(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    assert (checkpoints.steps(), checkpoints.last(), checkpoints.best()) == ([], None, None)


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20, 30, 40)
    assert checkpoints.steps() == [30, 40]
    assert checkpoints.load(40)[0]["model"]["w"].tolist() == [40.0, 40.0]


def test_the_best_checkpoint_is_kept_however_old(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10)
    checkpoints.mark_best(10, 1.5)
    for step in (20, 30, 40):
        checkpoints.save(step, {}, {})
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.last()) == ([10, 30, 40], 10, 40)
    assert [checkpoints.resolve(name) for name in ("best", "last", 30, "30")] == [10, 40, 30, 30]
    checkpoints.mark_best(40, 1.2)
    assert checkpoints.steps() == [30, 40]


def test_a_damaged_checkpoint_error_lists_the_others(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    file = checkpoints.path(20) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match=r"00000020/model\.safetensors is damaged(.|\n)*another checkpoint \(10\)"
    ):
        checkpoints.load(20)
    assert checkpoints.load(10)[1] == {"step": 10}


def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    (checkpoints.path(20) / "manifest.json").unlink()
    assert checkpoints.last() == 10
    checkpoints.drop_after(10)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["00000010"]


@pytest.mark.parametrize("how", ["save", "drop_after"])
def test_an_interrupted_removal_leaves_no_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    if how == "save":
        checkpoints.save(30, {}, {})
    else:
        checkpoints.drop_after(10)
    assert checkpoints.steps() == ([20, 30] if how == "save" else [10])


def test_drop_after_clears_a_later_best(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    checkpoints.mark_best(20, 1.5)
    checkpoints.drop_after(10)
    checkpoints.save(20, {}, {})
    assert checkpoints.best() is None


def test_a_best_without_a_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10)
    checkpoints.mark_best(99, 1.5)
    assert checkpoints.best() is None


@pytest.mark.parametrize("damage", [lambda text: "not json", lambda text: "[]", lambda text: text.replace("10", "20")])
def test_a_damaged_best_json_is_an_error_and_drops_nothing(tmp_path: Path, damage: Callable[[str], str]) -> None:
    checkpoints = saved(tmp_path, 10)
    checkpoints.mark_best(10, 1.5)
    checkpoints.save(20, {}, {})
    path = checkpoints.folder / "best.json"
    path.write_text(damage(path.read_text()))
    for use in (checkpoints.best, lambda: checkpoints.save(30, {}, {}), lambda: checkpoints.drop_after(10)):
        with pytest.raises(CheckpointError, match=r"best\.json is (damaged|not JSON|not valid)(.|\n)*fix: delete it"):
            use()
    assert checkpoints.steps() == [10, 20, 30]
    path.unlink()
    assert checkpoints.best() is None
