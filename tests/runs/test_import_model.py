"""Import: a run of a checkpoint of another tool, complete or not at all, on which everything but training works."""

from pathlib import Path

import pytest
import torch

import normscope
from normscope.cli import main
from normscope.errors import CheckpointError, ConfigError, FileError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.runs import import_model as module
from normscope.runs.import_model import import_model
from normscope.runs.list_runs import list_runs
from normscope.runs.read_source import find_source, load
from normscope.runs.run import is_run
from tests.cli.running import refused
from tests.runs.tiny_checkpoint import write_huggingface


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder in bfloat16, with a tokenizer of fewer tokens than the model has."""
    return write_huggingface(tmp_path_factory.mktemp("huggingface") / "tiny")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_imported_run_is_the_checkpoint(tiny: Path, tmp_path: Path) -> None:
    run = import_model(tiny, tmp_path / "run")
    (model, tokenizer), (theirs, their_tokenizer) = load(run), load(tiny)
    assert {name: value.dtype for name, value in model.named_parameters()} == dict.fromkeys(
        model.state_dict(), torch.bfloat16
    )
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in model.state_dict().items())
    assert tokenizer.to_json() == their_tokenizer.to_json()
    assert not model.training
    assert normscope.sample(run, "the", max_new_tokens=4) == normscope.sample(tiny, "the", max_new_tokens=4)


def test_commands_work_on_an_imported_run(tiny: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tiny)]) == 0
    assert capsys.readouterr().out.startswith("wrote runs/tiny (Hugging Face llama, 0.0 million parameters)")
    for command in (["xray", "runs/tiny"], ["draw", "model", "runs/tiny"], ["runs"]):
        assert main(command) == 0, command
    (summary,), errors = list_runs("runs")
    assert (summary.status, summary.step, errors) == ("done", 0, {})
    for command in (["resume", "runs/tiny"], ["resume", "runs/tiny", "--steps", "9"]):
        errors_shown = refused(command, capsys)
        assert (
            "has no training data: it was imported from tiny (Hugging Face llama)\nfix: normscope train" in errors_shown
        )
    assert not (in_folder / "runs/tiny/extension.json").exists()
    assert main(["import", str(tiny)]) == 0  # again, beside the first
    assert is_run(in_folder / "runs/tiny-2")


def test_an_interrupted_import_leaves_nothing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_state", killed)
    with pytest.raises(KeyboardInterrupt):
        import_model(tiny, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_import_replaces_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="is not an empty folder\nfix: choose a new folder with --out"):
        import_model(tiny, tmp_path)
    run = import_model(tiny, tmp_path / "run")
    with pytest.raises(FileError, match="is not an empty folder\nfix: choose"):  # not "resume", which it can't
        import_model(tiny, run.folder)
    with pytest.raises(ConfigError, match="is already a run"):
        import_model(run.folder)


def test_non_finite_weights_are_refused(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(source: Path) -> ExternalCheckpoint:
        found = find_source(tiny)
        assert found.read is not None
        checkpoint = found.read(tiny)
        weights = {**checkpoint.weights, "final_norm.weight": torch.full((32,), torch.nan)}
        return ExternalCheckpoint(checkpoint.format, tiny, checkpoint.config, weights, checkpoint.tokenizer)

    monkeypatch.setattr(module, "read_source", read)
    with pytest.raises(WeightsError, match=r"non-finite values in final_norm.weight\nfix: "):
        import_model(tiny, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_import_is_refused(tiny: Path, tmp_path: Path) -> None:
    run = import_model(tiny, tmp_path / "run")
    weights = run.checkpoints.path(0) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged: its checksum"):
        load(run)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", "gpt2 is a preset, which has neither weights nor a tokenizer\nfix: train it with"),
        ("nanocat", "no such model: 'nanocat' does not exist .*\nfix: use a run folder, a Hugging Face folder"),
        ("empty", "empty is not a model: it is an empty folder\nlooked for: run: a folder"),
        ("notes.txt", r"notes.txt is not a model: it is a file that starts with b'a text'"),
        ("untokenized", "has no tokenizer\nfix: copy the tokenizer.json"),
        ("untokenized/model.safetensors", "\nfix: name the folder that it is in, untokenized$"),
        ("onnx", "onnx is an ONNX model, which only `normscope diff` runs\nfix: use the run"),
    ],
)
def test_what_is_no_source_is_refused(name: str, words: str, tiny: Path, in_folder: Path) -> None:
    (in_folder / "empty").mkdir()
    (in_folder / "notes.txt").write_text("a text")
    (in_folder / "onnx").mkdir()
    for name_of_export in ("config.json", "model.onnx"):
        (in_folder / "onnx" / name_of_export).write_text("{}")
    (in_folder / "untokenized").mkdir()
    for file in tiny.iterdir():
        if file.name != "tokenizer.json":
            (in_folder / "untokenized" / file.name).write_bytes(file.read_bytes())
    with pytest.raises((ConfigError, FileError), match=words):
        load(name)


def test_a_checkpoint_number_belongs_to_a_run(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"chooses a step of a run, but .* is of the format Hugging Face"):
        load(tiny, checkpoint=4)
