"""TensorBoard's files, read back with TensorBoard's own reader."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.runs.events import NoticeEvent, RunEvent, SampleEvent
from normscope.training.observers.trackers import TensorBoard, import_tracker
from tests.training.observers.simulated import simulated_run, started, stepped, validated


def watch(folder: Path, events: Iterable[RunEvent]) -> None:
    board = TensorBoard(folder)
    for event in events:
        board.on_event(event)
    board.close()


def read(folder: Path) -> Any:
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    return reader.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def steps(found: Any, name: str) -> list[int]:
    return [event.step for event in found.Scalars(name)]


def test_tensorboard_reads_the_run_back(tmp_path: Path) -> None:
    told = list(simulated_run(100))
    watch(tmp_path / "board", told)
    found = read(tmp_path / "board")
    wanted = [event.loss for event in told if event.kind == "step"]  # type: ignore[attr-defined]
    assert [event.value for event in found.Scalars("training/loss")] == pytest.approx(wanted)
    for name in ("grad_norm", "matrix_lr", "lr", "lr_scale", "epoch", "tokens_per_second"):
        assert steps(found, f"training/{name}") == list(range(1, 101))
    assert steps(found, "validation/loss") == steps(found, "validation/bits_per_byte") == [50, 100]
    (sample,) = found.Tensors("sample/text_summary")
    assert sample.step == 100
    assert b"little fox" in sample.tensor_proto.string_val[0]


def test_a_resumed_run_purges_later_steps(tmp_path: Path) -> None:
    watch(tmp_path, [started(), *(stepped(step, loss=1.0) for step in range(1, 31))])
    watch(tmp_path, [started(step=20), validated(20, 1.5), *(stepped(step, loss=2.0) for step in range(21, 26))])
    found = read(tmp_path)
    assert steps(found, "validation/loss") == [20]
    later = [(event.step, event.value) for event in found.Scalars("training/loss") if event.step > 20]
    assert later == [(step, 2.0) for step in range(21, 26)]
    assert steps(found, "training/loss")[:20] == list(range(1, 21))  # the 20th step is not taken again


def test_a_rollback_purges_later_steps(tmp_path: Path) -> None:
    steps_then = [stepped(step, loss=1.0) for step in range(1, 11)]
    steps_again = [stepped(step, loss=2.0) for step in range(6, 9)]
    watch(tmp_path, [started(), *steps_then, NoticeEvent(5, "back at step 5"), *steps_again])
    found = [(event.step, event.value) for event in read(tmp_path).Scalars("training/loss")]
    assert found == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 1.0), (6, 2.0), (7, 2.0), (8, 2.0)]


@pytest.mark.parametrize("again", [NoticeEvent(0, "back at step 0"), started()])
def test_a_restart_purges_everything(tmp_path: Path, again: RunEvent) -> None:
    watch(tmp_path, [started(), *(stepped(step, loss=1.0) for step in range(1, 7)), again, stepped(1, loss=2.0)])
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("training/loss")] == [(1, 2.0)]


def test_closing_twice_and_before_any_event(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.close()
    board.on_event(SampleEvent(1, "a", "b"))
    board.close()
    board.close()


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(package: str) -> None:
    with pytest.raises(ConfigError, match=rf"{package} is not installed .*\nfix: pip install 'normscope\[track\]'"):
        import_tracker(f"no_such_module_of_{package}", package)
