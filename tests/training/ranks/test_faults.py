"""Faults of one rank: all of them stop, and what was saved is whole."""

from pathlib import Path

import pytest

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.training.nan_guard import NonFiniteOrigin, replay
from tests.pairs import chiefly, every_value
from tests.training.ranks.failures import (
    train,
    train_out_of_memory,
    train_with_bad_batches,
    train_with_full_disk,
)
from tests.training.ranks.processes import on_ranks
from tests.training.ranks.test_runs import of_kind, short_run
from tests.training.small_run import new_run, train_alone


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_bad_batch_of_one_rank_stops_all(tmp_path: Path, parallel: str) -> None:
    run = short_run(tmp_path / "run", parallel=parallel)
    main, other = on_ranks(2, train_with_bad_batches, str(run.folder), 4)
    assert main[0] == "NonFiniteError"
    assert "the loss is nan at step 5, batch 4, first in the loss" in main[1]
    assert other == ("RankError", "the loss is nan at step 5, batch 4")
    assert run.checkpoints.steps() == [2, 4]
    found, state = replay(run.folder / "nan" / "00000005-batch-4")
    assert found is None  # rank 0 had the whole batch when it looked; only the test's own loss is not a number
    assert (state["origin"]["where"], state["ranks"]) == ("the loss", "2")


@pytest.mark.parametrize("parallel", chiefly(["fsdp"], ["ddp"]))
def test_ranks_roll_back_together(tmp_path: Path, parallel: str) -> None:
    run = short_run(tmp_path / "run", parallel=parallel, on_nan="rollback")
    assert on_ranks(2, train_with_bad_batches, str(run.folder), 3, 6) == [("ended", "done")] * 2
    assert {3, 6} <= {*run.checkpoints.load(9)[1]["skipped_batches"]}
    assert [event["step"] for event in of_kind(run, "step")] == list(range(1, 10))
    train_alone(str(run.folder))


@pytest.mark.parametrize("parallel", chiefly(["ddp"], ["fsdp"]))
def test_weights_that_overflow_are_found_and_replayed(tmp_path: Path, parallel: str) -> None:
    run = new_run(tmp_path, steps=4, save_every=1, matrix_lr=1e38, grad_clip=None, parallel=parallel)
    (kind, text), other = on_ranks(2, train, str(run.folder))
    assert (kind, other[0]) == ("NonFiniteError", "RankError")
    bundle = text.partition("normscope replay ")[2].split()[0]
    found, _ = replay(bundle)
    assert isinstance(found, NonFiniteOrigin)
    assert str(found) in text


@every_value(where={"0": 0, "1": 1}, parallel=["ddp", "fsdp"])
def test_a_full_disk_of_one_rank_leaves_the_checkpoints(tmp_path: Path, where: int, parallel: str) -> None:
    run = short_run(tmp_path / "run", parallel=parallel)
    endings = on_ranks(2, train_with_full_disk, str(run.folder), where)
    kind, text = endings.pop(where)
    assert kind == "FileError"
    assert "checkpoints/00000006" in text
    assert endings[0][0] == "RankError"
    assert "another rank could not write its part" in endings[0][1] or "lost the connection" in endings[0][1]
    assert run.checkpoints.steps() == [2, 4]
    assert on_ranks(2, train, str(run.folder)) == [("ended", "done")] * 2


@every_value(where={"0": 0, "1": 1, "2": 2}, parallel=["ddp", "fsdp"])
def test_a_rank_without_memory_stops_all(tmp_path: Path, where: int, parallel: str) -> None:
    run = short_run(tmp_path / "run", parallel=parallel)
    endings = on_ranks(3, train_out_of_memory, str(run.folder), where)
    kind, text = endings.pop(where)
    assert kind == "ConfigError"
    assert "not enough memory for this run: cannot allocate memory" in text
    for kind, text in endings:
        assert kind == "RankError"
        assert "lost the connection to another rank" in text
    assert run.checkpoints.last() == 4


@pytest.mark.parametrize("parallel", chiefly(["ddp"], ["fsdp"]))
def test_rank_0_computes_alone_with_norms_that_synchronize(tmp_path: Path, parallel: str) -> None:
    """Samples and x-rays: a sum over the ranks would wait for ever."""
    model = {"norm": NormSpec("[b s] d", sync=True), "allow_future_leak": True}
    run = short_run(tmp_path / "run", parallel=parallel, model=model, on_nan="rollback")
    assert on_ranks(2, train_with_bad_batches, str(run.folder), 5) == [("ended", "done")] * 2
    assert len(of_kind(run, "sample")) == 3
    assert run.xray_snapshots.steps() == [0, 3, 6, 9]
