"""Formats of the files of a run: numbers in every file, migrations, defaults for missing fields."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import CheckpointError, ConfigError, FileError
from normscope.runs.checkpoints import BEST_FORMAT
from normscope.runs.checksummed_folder import MANIFEST_FORMAT, STATE_FORMAT
from normscope.runs.config import CONFIG_FORMAT, RunConfig, check_same_config
from normscope.runs.events import METRICS_FORMAT, NoticeEvent, StartedEvent
from normscope.runs.metrics_file import MetricsFile, read_metrics
from normscope.runs.run import Run
from normscope.storage.json_files import FileFormat
from normscope.training.config import TrainConfig
from normscope.training.loop import train_run
from tests.runs.tampering import rewrite_config
from tests.training.small_run import new_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = new_run(tmp_path_factory.mktemp("run"), steps=2, on_nan="rollback", grad_clip=0.5)
    train_run(run)
    return run


def test_every_file_has_a_format_number(run: Run) -> None:
    checkpoint = run.checkpoints.path(2)
    files = [run.folder / "config.json", run.folder / "manifest.json", checkpoint / "manifest.json"]
    files += [checkpoint / "state.json", run.checkpoints.folder / "best.json"]
    assert all(json.loads(path.read_text())["format"] >= 1 for path in files)
    assert read_metrics(run.metrics)[0]["format"] == METRICS_FORMAT.version


def test_the_formats_of_the_first_release_are_1() -> None:
    formats = (MANIFEST_FORMAT, STATE_FORMAT, BEST_FORMAT, METRICS_FORMAT)
    assert [(known.version, dict(known.migrations)) for known in formats] == [(1, {})] * 4
    # 2 since train.ns_steps has its name, 3 since a run may start from another model
    assert (CONFIG_FORMAT.version, list(CONFIG_FORMAT.migrations)) == (3, [1, 2])


def rename_fields(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in content.items()}


def later_format(config: dict[str, Any]) -> dict[str, Any]:
    """A made-up migration: `lr` was called `rate`, and `on_nan` had another value."""
    train = rename_fields(config["train"], {"rate": "lr"})
    return {**config, "train": {**train, "on_nan": "rollback" if train["on_nan"] == "rewind" else train["on_nan"]}}


NEXT_FORMAT = FileFormat(CONFIG_FORMAT.version + 1, {**CONFIG_FORMAT.migrations, CONFIG_FORMAT.version: later_format})


def test_muon_steps_of_the_first_release_became_ns_steps(run: Run, tmp_path: Path) -> None:
    def as_first_released(config: dict[str, Any]) -> None:
        config.update(format=1, train=rename_fields(config["train"], {"ns_steps": "muon_steps"}))

    old = run.config.to_json()
    old["train"]["ns_steps"] = 3
    as_first_released(old)
    assert RunConfig.from_json(old).train.ns_steps == 3
    with pytest.raises(ConfigError, match="has the unknown setting 'muon_steps'"):
        RunConfig.from_json({**old, "format": 2})
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    rewrite_config(folder, as_first_released)
    assert Run.open(folder).config == run.config
    config = json.loads((folder / "config.json").read_text())
    config["train"]["lr"] = 5.0
    (folder / "config.json").write_text(json.dumps(config))  # the error names what changed, and not what was renamed
    with pytest.raises(CheckpointError, match=r"since this run started: train.lr was [\d.]+ and is 5.0\n"):
        Run.open(folder)


def test_renamed_settings_are_migrated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    old = run.config.to_json()
    old["train"] = {**rename_fields(old["train"], {"lr": "rate"}), "on_nan": "rewind"}
    with pytest.raises(ConfigError, match="has the unknown setting 'rate'"):
        RunConfig.from_json(old)
    monkeypatch.setattr("normscope.runs.config.CONFIG_FORMAT", NEXT_FORMAT)
    assert RunConfig.from_json(old) == run.config
    check_same_config(run.config, old)


def test_a_run_of_an_older_format_opens_and_resumes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    rewrite_config(folder, lambda config: config.update(train=rename_fields(config["train"], {"lr": "rate"})))
    with pytest.raises(ConfigError, match="has the unknown setting 'rate'"):
        Run.open(folder)
    monkeypatch.setattr("normscope.runs.config.CONFIG_FORMAT", NEXT_FORMAT)
    opened = Run.open(folder)
    assert opened.config == run.config
    assert train_run(opened, from_step=2) == "done"
    assert (
        json.loads((folder / "config.json").read_text())["format"] == CONFIG_FORMAT.version
    )  # checkpoints are bound to its bytes


def test_missing_settings_get_their_defaults(run: Run) -> None:
    content = run.config.to_json()
    del content["train"]["weight_decay"], content["model"]["rotary_base"], content["model"]["norm"]["momentum"]
    assert RunConfig.from_json(content) == run.config
    check_same_config(run.config, content)


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("train", "steps", "the training's config lacks 'steps'"),
        ("model", "vocab_size", "the model's config lacks 'vocab_size'"),
    ],
)
def test_settings_without_a_default_are_required(run: Run, part: str, name: str, message: str) -> None:
    content = run.config.to_json()
    del content[part][name]
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_json(content)


@pytest.mark.parametrize("part", ["train", "model"])
def test_unknown_settings_are_named(run: Run, part: str) -> None:
    content = run.config.to_json()
    content[part]["color"] = "red"
    with pytest.raises(ConfigError, match="has the unknown setting 'color'"):
        RunConfig.from_json(content)


def test_newer_config_format_raises(run: Run) -> None:
    content = run.config.to_json()
    with pytest.raises(ConfigError, match=r"has format 99, .*\nfix: update normscope"):
        RunConfig.from_json({**content, "format": 99})


def test_older_events_are_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shout(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "text": event["text"].upper()} if event["kind"] == "notice" else event

    file = MetricsFile(tmp_path / "metrics.jsonl")
    for version in (1, 2, 3):
        file.on_event(StartedEvent(0, "run", 1, 1, 1, 1, 1.0, format=version))
        file.on_event(NoticeEvent(0, f"of format {version}"))
    file.close()
    monkeypatch.setattr("normscope.runs.metrics_file.METRICS_FORMAT", FileFormat(3, {1: shout, 2: lambda event: event}))
    notices = [event["text"] for event in read_metrics(file.path) if event["kind"] == "notice"]
    assert notices == ["OF FORMAT 1", "of format 2", "of format 3"]
    monkeypatch.setattr("normscope.runs.metrics_file.METRICS_FORMAT", FileFormat(2, {1: shout}))
    with pytest.raises(FileError, match=r"line 5 of .* has format 3, .*\nfix: update normscope"):
        read_metrics(file.path)


def test_only_steps_and_batch_have_no_default() -> None:
    assert TrainConfig.from_json({"steps": 5, "batch": 2}) == TrainConfig(steps=5, batch=2)
