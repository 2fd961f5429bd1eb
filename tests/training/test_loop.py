"""The training loop: what runs when, what is kept, and how runs resume."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.errors import CheckpointError, ConfigError, FileError
from normscope.ops.kernel_mode import reference_kernels
from normscope.runs.events import (
    CheckpointEvent,
    FinishedEvent,
    NoticeEvent,
    RunEvent,
    SampleEvent,
    StartedEvent,
    StepEvent,
    ValidationEvent,
)
from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from normscope.storage.lock import locked
from normscope.training import periodic_tasks
from normscope.training.loop import train_run
from normscope.training.validation import ValidationResult
from tests.pairs import chiefly
from tests.training.small_run import last_sums, new_run
from tests.training.watching import Recorder, story


def new_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def trained(folder: Path, **settings: Any) -> Run:
    run = new_run(folder, **settings)
    assert train_run(run) == "done"
    return run


def test_events_and_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.training.loop.has_compiled_kernels", lambda: True)
    run, recorder = new_run(tmp_path, steps=4, save_every=2, eval_every=2, sample_every=2), Recorder()
    assert train_run(run, [recorder]) == "done"
    due = [("checkpoint", 2), ("validation", 2), ("sample", 2)]
    assert recorder.kinds() == [
        ("started", 0),
        ("notice", 0),  # that the text is short
        ("signal", 0),
        ("step", 1),
        ("signal", 1),
        ("step", 2),
        *due,
        ("step", 3),
        ("step", 4),
        ("checkpoint", 4),
        ("signal", 4),
        ("validation", 4),
        ("sample", 4),
        ("finished", 4),
    ]
    assert recorder.closed == 1
    assert read_metrics(run.metrics) == recorder.lines()
    (started,) = recorder.of(StartedEvent)
    assert (started.steps, started.batch_tokens, started.folder) == (4, 64, str(run.folder))
    assert [event.epoch for event in recorder.of(StepEvent)] == sorted(event.epoch for event in recorder.of(StepEvent))
    assert recorder.of(FinishedEvent)[0].reason == "done"


def test_an_interval_of_0_means_only_at_the_end(tmp_path: Path) -> None:
    run, recorder = new_run(tmp_path, steps=5, save_every=0, eval_every=0, sample_every=0), Recorder()
    train_run(run, [recorder])
    for kind in (CheckpointEvent, ValidationEvent, SampleEvent):
        assert [event.step for event in recorder.of(kind)] == [5]


def test_an_interval_beyond_the_end_means_only_at_the_end(tmp_path: Path) -> None:
    run, recorder = new_run(tmp_path, steps=3, save_every=50, eval_every=50, sample_every=50), Recorder()
    train_run(run, [recorder])
    assert [event.step for event in recorder.of(ValidationEvent)] == [3]
    assert run.checkpoints.steps() == [3]


def test_periodic_tasks_leave_the_rng_alone(tmp_path: Path) -> None:
    plain = trained(new_folder(tmp_path, "plain"), steps=3, sample_every=0, save_every=0, eval_every=0)
    busy = trained(new_folder(tmp_path, "busy"), steps=3, sample_every=1, save_every=1, eval_every=1)
    assert last_sums(plain) == last_sums(busy)


class Steered:
    """Validation losses as the test wants them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
        found = iter(losses)
        monkeypatch.setattr(
            periodic_tasks, "evaluate", lambda *_: ValidationResult(loss=next(found), bits_per_byte=1.0)
        )


def test_the_best_checkpoint_is_marked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Steered(monkeypatch, 3.0, 2.0, 2.5, 2.4, 2.3)
    run, recorder = new_run(tmp_path, steps=10, save_every=2, eval_every=2), Recorder()
    train_run(run, [recorder])
    assert [event.best for event in recorder.of(ValidationEvent)] == [True, True, False, False, False]
    assert (run.checkpoints.best(), run.checkpoints.steps()) == (4, [4, 8, 10])
    assert run.load_model("best")[1] == 4


def test_overfitting_is_told_when_it_begins_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation loss rises by more than 2% at step 8 and stays there; the training loss is about 3."""
    Steered(monkeypatch, 10.0, 9.0, 9.1, 11.0, 12.0, 12.0)
    run, recorder = new_run(tmp_path, steps=10, save_every=2, eval_every=2), Recorder()
    train_run(run, [recorder])
    told = [(event.step, event.text) for event in recorder.of(NoticeEvent) if event.text.startswith("overfitting")]
    assert [step for step, _ in told] == [8, 10]
    assert told[1][1] == (
        "overfitting: the validation loss was best at step 4 (9.0000) and has risen to 12.0000. "
        "The best checkpoint is kept, and sample uses it. Add text, or lower --depth or --steps"
    )
    kept = [event["step"] for event in read_metrics(run.metrics) if "overfitting:" in event.get("text", "")]
    assert kept == [10]
    assert "has risen to 12.0000" in (run.folder / "report.html").read_text()
    before = story(run)
    train_run(Run.open(run.folder))  # validates again, but makes no step whose loss would be known
    assert story(run) == before


def test_a_model_that_does_not_learn_is_not_said_to_overfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Steered(monkeypatch, 0.2, 0.3, 0.4)  # far below the training loss
    run, recorder = new_run(tmp_path, steps=6, save_every=2, eval_every=2), Recorder()
    train_run(run, [recorder])
    assert not any("overfitting:" in event.text for event in recorder.of(NoticeEvent))


def test_the_best_checkpoint_is_saved_even_if_no_save_is_due(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=8, save_every=0, eval_every=3)
    train_run(run, until=4)
    assert run.checkpoints.best() == 3


def test_a_nan_loss_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Steered(monkeypatch, float("nan"), 2.0)
    run = trained(tmp_path, steps=4, eval_every=2, save_every=2)
    assert run.checkpoints.best() == 4


def test_resuming_before_the_best_drops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Steered(monkeypatch, 3.0, 2.0, 4.0, 4.0)
    run = new_run(tmp_path, steps=8, save_every=3, eval_every=2)
    train_run(run, until=4)
    assert run.checkpoints.best() == 4
    train_run(run, from_step=3, until=4)  # this time it is no better than it was at step 2
    assert (run.checkpoints.best(), run.checkpoints.steps()) == (None, [3, 4])


# At step 2 samples are due and nothing is saved: what is told there must not be told twice.
NINE_STEPS: dict[str, Any] = {"steps": 9, "sample_every": 2, "save_every": 0, "eval_every": 4}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of nine steps without a pause, to compare with."""
    torch.manual_seed(0)
    return trained(tmp_path_factory.mktemp("straight"), **NINE_STEPS)


@pytest.mark.parametrize("pauses", chiefly([(2, 4), (5, 5)], [(3,), (1, 2, 3, 4, 5, 6, 7, 8)]))
def test_a_paused_run_equals_an_uninterrupted_one(straight: Run, tmp_path: Path, pauses: tuple[int, ...]) -> None:
    paused = new_run(new_folder(tmp_path, "paused"), **NINE_STEPS)
    for pause in pauses:
        assert train_run(Run.open(paused.folder), until=pause) == "paused"
        assert paused.checkpoints.last() == pause
    assert train_run(Run.open(paused.folder)) == "done"
    assert last_sums(paused) == last_sums(straight)
    assert story(paused) == story(straight)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of nine steps, saved every three; to be copied."""
    torch.manual_seed(0)
    return trained(tmp_path_factory.mktemp("finished"), steps=9, save_every=3)


def test_from_step_drops_later_checkpoints(finished: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(finished.folder, tmp_path / "run"))
    assert run.checkpoints.steps() == [6, 9]
    assert train_run(run, from_step=6, until=7) == "paused"
    assert run.checkpoints.steps() == [6, 7]
    assert [event["step"] for event in read_metrics(run.metrics) if event["kind"] == "step"] == list(range(1, 8))
    assert train_run(run) == "done"
    assert (last_sums(run), story(run)) == (last_sums(finished), story(finished))


def test_from_step_0_is_the_start(tmp_path: Path) -> None:
    run = trained(tmp_path, steps=4)
    sums, told = last_sums(run), story(run)
    assert train_run(run, from_step=0) == "done"
    assert (last_sums(run), story(run)) == (sums, told)


def test_an_unsaved_from_step_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path, steps=6, save_every=3)
    before = run.metrics.read_bytes()
    for wrong in (5, 99):
        with pytest.raises(CheckpointError, match=r"use another checkpoint \(3, 6\)"):
            train_run(run, from_step=wrong)
    with pytest.raises(ConfigError, match="from_step=-1"):
        train_run(run, from_step=-1)
    with pytest.raises(ConfigError, match="until=0"):
        train_run(run, until=0)
    assert (run.checkpoints.steps(), run.metrics.read_bytes()) == ([3, 6], before)


def test_resuming_a_finished_run_gives_the_same_end(tmp_path: Path) -> None:
    run = trained(tmp_path, steps=5, sample_every=5)
    sums, told = last_sums(run), story(run)
    recorder = Recorder()
    assert train_run(Run.open(run.folder), [recorder]) == "done"
    assert not recorder.of(StepEvent)
    assert (last_sums(run), story(run)) == (sums, told)


def test_a_damaged_checkpoint_error_suggests_another(finished: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(finished.folder, tmp_path / "run"))
    file = run.checkpoints.path(9) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"00000009/model.safetensors is damaged(.|\n)*another checkpoint \(6\): .*--from-step"
    ) as refused:
        train_run(run)
    assert "\nfix: " in str(refused.value)
    assert run.checkpoints.steps() == [6, 9]
    assert train_run(run, from_step=6) == "done"
    assert (last_sums(run), story(run)) == (last_sums(finished), story(finished))


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps of which two are done; to be copied."""
    run = new_run(tmp_path_factory.mktemp("two-steps"), steps=6)
    train_run(run, until=2)
    return run.folder


@pytest.fixture
def begun(two_steps: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(two_steps, tmp_path / "run"))


@pytest.mark.parametrize(
    ("section", "name", "value", "words"),
    [
        ("train", "matrix_lr", 0.5, "train.matrix_lr was 0.02 and is 0.5"),
        ("train", "steps", 500, "train.steps was 6 and is 500"),
        ("train", "seed", 3, "train.seed was 0 and is 3"),
        ("model", "dropout", 0.4, "model.dropout was 0.1 and is 0.4"),
        (None, "prompt", "7", "prompt was '' and is '7'"),
    ],
)
def test_a_changed_config_is_an_error_with_the_setting(
    begun: Run, section: str | None, name: str, value: Any, words: str
) -> None:
    path = begun.folder / "config.json"
    content = json.loads(path.read_text())
    (content if section is None else content[section])[name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=words):
        train_run(Run.open(begun.folder))
    assert begun.checkpoints.last() == 2


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "tokenizer.json", "corpus.json"])
def test_changed_and_missing_tokens_are_errors(begun: Run, name: str) -> None:
    path = begun.folder / "data" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises((FileError, CheckpointError), match=name.replace("corpus.json", "corpus")):
        train_run(begun)
    path.unlink()
    with pytest.raises(FileError, match=name):
        train_run(begun)


def test_tokens_of_another_text_are_an_error(tmp_path: Path) -> None:
    run, other = new_run(tmp_path, steps=6), new_folder(tmp_path, "other")
    (other / "text.txt").write_text("another text altogether.\n" * 500)
    for path in (new_run(other).folder / "data").iterdir():
        (run.folder / "data" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="changed since this run started: train, validation, tokenizer"):
        train_run(run)


def test_a_changed_text_is_an_error(tmp_path: Path) -> None:
    run, text = new_run(tmp_path, steps=4), tmp_path / "text.txt"
    train_run(run, until=2)
    before = text.read_text()
    text.write_text(before + "one more line\n")
    with pytest.raises(
        CheckpointError, match=r"source text changed since this run started: .*text.txt\nfix: start a new run"
    ):
        train_run(run)
    text.write_text(before)  # the same words, written later
    assert train_run(run, until=3) == "paused"


def test_a_missing_text_is_only_a_notice(tmp_path: Path) -> None:
    run, recorder = new_run(tmp_path, steps=4), Recorder()
    train_run(run, until=2)
    (tmp_path / "text.txt").unlink()
    assert train_run(run, [recorder]) == "done"
    assert "text.txt. The run continues with its saved tokens" in recorder.of(NoticeEvent)[0].text


def test_a_second_process_is_an_error(tmp_path: Path) -> None:
    run, recorder = new_run(tmp_path, steps=2), Recorder()
    with (
        locked(run.folder),
        pytest.raises(FileError, match=r"another process is using .*run\nfix: wait"),
    ):
        train_run(run, [recorder])
    assert recorder.closed == 1
    assert train_run(run) == "done"


def test_a_failing_observer_loses_nothing(finished: Run, tmp_path: Path) -> None:
    class Failing(Recorder):
        def on_event(self, event: RunEvent) -> None:
            if event.kind == "step" and event.step == 5:
                raise ConnectionError

    run, failing = new_run(tmp_path, steps=9, save_every=3), Failing()
    with pytest.raises(ConnectionError):
        train_run(run, [failing])
    assert (failing.closed, run.checkpoints.last()) == (1, 3)
    assert train_run(run) == "done"
    assert (last_sums(run), story(run)) == (last_sums(finished), story(finished))


def test_checkpoint_events_survive_a_resume(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=6, save_every=2)
    train_run(run, until=2)
    train_run(run, until=4)
    train_run(run)
    saved = [event for event in read_metrics(run.metrics) if event["kind"] == "checkpoint"]
    assert [(event["step"], event["path"]) for event in saved] == [
        (step, str(run.checkpoints.path(step))) for step in (2, 4, 6)
    ]


def test_a_changed_environment_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another form sums are added up in another order."""
    monkeypatch.setattr("normscope.training.loop.has_compiled_kernels", lambda: True)
    run, same, other = new_run(tmp_path, steps=6), Recorder(), Recorder()
    train_run(run, until=2)
    train_run(run, [same], until=3)
    with reference_kernels():
        train_run(run, [other], until=4)
    assert not same.of(NoticeEvent)
    assert [notice.text for notice in other.of(NoticeEvent)] == [
        "environment changed: kernels was fused and is reference. Results may differ in the last bits from here on"
    ]
    facts = json.loads((run.checkpoints.path(4) / "state.json").read_text())
    assert facts["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_checkpoint_of_another_device_is_resumed_with_a_notice(begun: Run, device: str) -> None:
    tensors, state = begun.checkpoints.load(2)
    kind = device.partition(":")[0]
    tensors["rng"][kind] = torch.zeros({"cuda": 16, "mps": 44}[kind], dtype=torch.uint8)
    state["environment"]["device"] = device
    begun.checkpoints.save(2, tensors, state)
    recorder = Recorder()
    train_run(begun, [recorder])
    (notice,) = [event.text for event in recorder.of(NoticeEvent) if "environment changed" in event.text]
    assert f"device was {device} and is cpu. Dropout draws other masks from here on" in notice


def test_out_of_memory_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr("normscope.training.loop._train", fail)
    with pytest.raises(ConfigError, match=r"not enough memory for this run: .*\nfix: start a new run with a smaller"):
        train_run(new_run(tmp_path, steps=2))


def test_other_errors_of_torch_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("normscope.training.loop._train", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        train_run(new_run(tmp_path, steps=2))


def test_training_writes_the_report(tmp_path: Path) -> None:
    assert "report.html" in {path.name for path in trained(tmp_path, steps=2).folder.iterdir()}
