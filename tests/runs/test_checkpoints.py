"""Which checkpoints stay, which go, and what is said of a damaged one."""

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


def test_there_is_nothing_before_the_first(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    assert (checkpoints.steps(), checkpoints.last(), checkpoints.best()) == ([], None, None)


def test_the_last_two_stay(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20, 30, 40)
    assert checkpoints.steps() == [30, 40]
    assert checkpoints.load(40)[0]["model"]["w"].tolist() == [40.0, 40.0]


def test_the_best_stays_however_old(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10)
    checkpoints.mark_best(10, 1.5)
    for step in (20, 30, 40):
        checkpoints.save(step, {}, {})
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.last()) == ([10, 30, 40], 10, 40)
    checkpoints.mark_best(40, 1.2)
    assert checkpoints.steps() == [30, 40]


def test_a_damaged_one_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    file = checkpoints.path(20) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match=r"00000020/model\.safetensors is damaged(.|\n)*another checkpoint \(10\)"
    ):
        checkpoints.load(20)
    assert checkpoints.load(10)[1] == {"step": 10}


def test_what_was_never_finished_does_not_count(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    (checkpoints.path(20) / "manifest.json").unlink()
    assert checkpoints.last() == 10
    checkpoints.drop_after(10)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["00000010"]


@pytest.mark.parametrize("how", ["save", "drop_after"])
def test_a_removal_that_is_cut_short_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    if how == "save":
        checkpoints.save(30, {}, {})
    else:
        checkpoints.drop_after(10)
    assert checkpoints.steps() == ([20, 30] if how == "save" else [10])


def test_a_best_that_is_forgotten_is_not_the_best_of_a_later_try(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    checkpoints.mark_best(20, 1.5)
    checkpoints.drop_after(10)
    checkpoints.save(20, {}, {})
    assert checkpoints.best() is None


def test_a_best_that_is_gone_is_no_best(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10)
    checkpoints.mark_best(99, 1.5)
    assert checkpoints.best() is None


@pytest.mark.parametrize("damage", [lambda text: "not json", lambda text: "[]", lambda text: text.replace("10", "20")])
def test_a_damaged_mark_is_refused_and_the_best_is_not_dropped(tmp_path: Path, damage: Callable[[str], str]) -> None:
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
