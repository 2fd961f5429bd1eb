"""NaN and Inf during training: the origin is named, a bundle is saved, and the run stops or rolls back."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.data.batches import Batches
from normscope.errors import NonFiniteError
from normscope.models.gpt import GPT
from normscope.runs.events import NoticeEvent, StartedEvent
from normscope.runs.metrics_file import event_to_json, read_metrics
from normscope.runs.report.page import write_report
from normscope.runs.run import Run
from normscope.training import rollback
from normscope.training.loop import train_run
from normscope.training.nan_guard import NonFiniteOrigin, replay
from normscope.training.rollback import TRIES_PER_CHECKPOINT
from normscope.training.trainer import StepResult, Trainer
from tests.training.small_run import last_sums, new_run
from tests.training.watching import Recorder, story


def new_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the loss of some batches of a run not a number."""
    true_loss = GPT.loss

    def spoil(run: Run, *numbers: int) -> None:
        batches = Batches(run.corpus().train, run.config.model.context, run.config.train.batch, run.config.train.seed)
        bad = [batches.batch(number)[0] for number in numbers]

        def loss(self: GPT, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
            value = true_loss(self, tokens, targets, positions)
            return value * torch.nan if any(np.array_equal(tokens.numpy(), inputs) for inputs in bad) else value

        monkeypatch.setattr(GPT, "loss", loss)

    return spoil


def test_on_nan_stop_names_the_origin_and_saves_a_bundle(tmp_path: Path, spoil: Callable[..., None]) -> None:
    run = new_run(tmp_path, steps=8, save_every=3)
    spoil(run, 4)
    with pytest.raises(NonFiniteError, match=r"the loss is nan at step 5, batch 4, first in the loss") as stopped:
        train_run(run)
    folder = run.folder / "nan" / "00000005-batch-4"
    assert f"normscope replay {folder}" in str(stopped.value)
    assert "fix: " in str(stopped.value)
    assert replay(folder)[0] == NonFiniteOrigin("the loss", "forward", "nan")
    assert run.checkpoints.last() == 3
    assert "the loss is nan" in [event for event in read_metrics(run.metrics) if event["kind"] == "notice"][-1]["text"]


def test_on_nan_rollback_skips_the_batch_and_finishes(tmp_path: Path, spoil: Callable[..., None]) -> None:
    runs = [new_run(new_folder(tmp_path, name), steps=8, save_every=3, on_nan="rollback") for name in ("one", "two")]
    recorder = Recorder()
    spoil(runs[0], 4, 6)
    assert train_run(runs[0], [recorder]) == "done"
    assert [notice.text.splitlines()[-1] for notice in recorder.of(NoticeEvent)[1:]] == [
        "rolled back to step 3; batch 4 is skipped",
        "rolled back to step 3; batch 6 is skipped",
    ]
    assert [event["step"] for event in read_metrics(runs[0].metrics) if event["kind"] == "step"] == list(range(1, 9))
    facts = json.loads((runs[0].checkpoints.path(8) / "state.json").read_text())
    assert (facts["skipped_batches"], facts["next_batch"]) == ([4, 6], 10)
    # The same with pauses in between, one of them after going back.
    for pause in (2, 4, 5, 8):
        train_run(runs[1], until=pause)
    assert (last_sums(runs[1]), story(runs[1])) == (last_sums(runs[0]), story(runs[0]))


@pytest.fixture
def few_rollbacks(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many and no more, for a shorter run."""
    monkeypatch.setattr(rollback, "MAX_ROLLBACKS", 3)
    return 3


def test_a_diverging_run_gives_up(tmp_path: Path, few_rollbacks: int) -> None:
    settings = {"steps": 20, "save_every": 1, "matrix_lr": 1e38, "on_nan": "rollback", "grad_clip": None}
    messages = []
    for name in ("one", "two"):
        run = new_run(new_folder(tmp_path, name), {"dropout": 0.0}, **settings)
        with pytest.raises(NonFiniteError, match=f"recurred after {few_rollbacks} rollbacks") as stopped:
            train_run(run)
        messages.append(str(stopped.value).replace(f"{os.sep}{name}{os.sep}", ""))
    assert messages[0] == messages[1]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=6, save_every=1, lr=1e39)
    with pytest.raises(NonFiniteError, match=r"a weight is not finite after step 1, batch 0, first in .*weight"):
        train_run(run)
    assert run.checkpoints.steps() == []
    fault, facts = replay(run.folder / "nan" / "00000002-batch-1")
    assert fault is not None
    assert fault.when == "weights"
    assert facts["error"].startswith("a weight is not finite")


def test_the_batch_that_broke_the_weights_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows a step later, when another batch is tried."""
    true_step = Trainer.step

    def step(self: Trainer) -> StepResult:
        result = true_step(self)
        if self.last_batch() == 4:
            with torch.no_grad():
                self.model.get_parameter("blocks.1.mlp.up.weight")[0, 0] = torch.inf
        return result

    monkeypatch.setattr(Trainer, "step", step)
    run, recorder = new_run(tmp_path, steps=8, save_every=3, on_nan="rollback"), Recorder()
    assert train_run(run, [recorder]) == "done"
    (notice,) = recorder.of(NoticeEvent)[1:]
    assert "first in blocks.1.mlp.up.weight" in notice.text
    assert notice.text.endswith("rolled back to step 3; batch 4 is skipped")


def test_dropout_is_the_same_when_the_batch_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that only one draw of the dropout shows is found again, and by replay too."""
    true_loss, seen = GPT.loss, []

    def loss(self: GPT, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
        value = true_loss(self, tokens, targets, positions)
        if self.training:
            seen.append(value.item())
        return value * torch.nan if len(seen) == 3 or (len(seen) > 3 and value.item() == seen[2]) else value

    monkeypatch.setattr(GPT, "loss", loss)
    run = new_run(tmp_path, steps=6, save_every=0, eval_every=0)
    with pytest.raises(NonFiniteError, match="at step 3, batch 2, first in the loss"):
        train_run(run)
    assert replay(run.folder / "nan" / "00000003-batch-2")[0] == NonFiniteOrigin("the loss", "forward", "nan")


def test_a_nan_in_a_micro_batch_is_found_there(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=3, matrix_lr=1e38, grad_clip=None, micro_batch=1)
    with pytest.raises(NonFiniteError, match="first in blocks"):
        train_run(run)
    (folder,) = (run.folder / "nan").iterdir()
    fault, facts = replay(folder)
    assert facts["micro_batch"] == 1
    assert fault == NonFiniteOrigin(**facts["origin"])


def notices(run: Run) -> list[str]:
    """The last lines of those that speak of going back, as the record has them."""
    told = [event["text"].splitlines()[-1] for event in read_metrics(run.metrics) if event["kind"] == "notice"]
    return [text for text in told if text.startswith("rolled back to")]


def test_two_bad_batches_in_a_row_are_both_saved_and_reported(tmp_path: Path, spoil: Callable[..., None]) -> None:
    run = new_run(tmp_path, steps=8, save_every=3, on_nan="rollback")
    spoil(run, 4, 5)
    assert train_run(run) == "done"
    assert sorted(path.name for path in (run.folder / "nan").iterdir()) == ["00000005-batch-4", "00000005-batch-5"]
    assert notices(run) == ["rolled back to step 3; batch 4 is skipped", "rolled back to step 3; batch 5 is skipped"]


def test_a_rollback_to_the_start_keeps_the_started_event(tmp_path: Path, spoil: Callable[..., None]) -> None:
    run, recorder = new_run(tmp_path, steps=6, save_every=3, on_nan="rollback"), Recorder()
    spoil(run, 1, 2)
    assert train_run(run, [recorder]) == "done"
    record = read_metrics(run.metrics)
    assert [(event["kind"], event["step"]) for event in record[:5]] == [
        ("started", 0),
        *[("notice", 0)] * 3,
        ("signal", 0),
    ]
    assert record[0] == event_to_json(recorder.of(StartedEvent)[0])
    assert len(recorder.of(StartedEvent)) == 1  # whoever watches has not forgotten it
    assert "6 of 6 steps" in write_report(run.folder).read_text()


def test_bad_batches_far_apart_do_not_add_up(tmp_path: Path, spoil: Callable[..., None], few_rollbacks: int) -> None:
    run = new_run(tmp_path, steps=4 * few_rollbacks, save_every=1, eval_every=0, on_nan="rollback")
    bad = range(3, 3 * few_rollbacks + 7, 3)
    spoil(run, *bad)
    assert len(bad) > few_rollbacks + 1
    assert train_run(run) == "done"
    facts = json.loads((run.checkpoints.path(run.config.train.steps) / "state.json").read_text())
    assert facts["skipped_batches"] == list(bad)
    assert len(notices(run)) == len(bad)


def test_repeated_failures_roll_back_to_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch 5 makes weights that are finite, and of which nothing comes but numbers that are not."""
    true_step = Trainer.step

    def step(self: Trainer) -> StepResult:
        number = self._next_batch_index()
        if bool(self.model.embedding.weight[0, 0] == 12345):
            raise NonFiniteError(f"the loss is nan at step {self.steps_done + 1}, batch {number}")
        result = true_step(self)
        if number == 5:
            with torch.no_grad():
                self.model.embedding.weight[0, 0] = 12345
        return result

    monkeypatch.setattr(Trainer, "step", step)
    run = new_run(tmp_path, steps=9, save_every=3, eval_every=0, on_nan="rollback")
    assert train_run(run) == "done"
    last = 6 + TRIES_PER_CHECKPOINT
    words = f"batches 3 to {last} are skipped, because the error recurred after step 6"
    singly = [f"rolled back to step 3; batch {number} is skipped" for number in range(6, last)]
    assert notices(run) == [*(text.replace("step 3", "step 6") for text in singly), f"rolled back to step 3; {words}"]
    assert [event["step"] for event in read_metrics(run.metrics) if event["kind"] == "step"] == list(range(1, 10))
    facts = json.loads((run.checkpoints.path(9) / "state.json").read_text())
    assert (facts["skipped_batches"], facts["next_batch"]) == ([*range(3, last + 1)], last + 7)


def test_a_nan_in_running_statistics_is_replayed(tmp_path: Path) -> None:
    run = new_run(tmp_path, {"norm": "power"}, steps=9, matrix_lr=1e38, grad_clip=None)
    with pytest.raises(NonFiniteError, match="first in"):
        train_run(run)
    (folder,) = (run.folder / "nan").iterdir()
    fault, facts = replay(folder)
    assert fault == NonFiniteOrigin(**facts["origin"])
    assert (facts["device"], facts["precision"]) == ("cpu", "float32")
