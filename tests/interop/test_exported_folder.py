"""A folder that `normscope export --to safetensors` wrote is a source like any other."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import normscope
from normscope.cli import main
from normscope.comparing.comparison import ModelDiff
from normscope.errors import NormscopeError
from normscope.exporting.export import export_source
from normscope.runs.read_source import find_source, load
from tests.exporting.models import small_source

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model in bfloat16 with fields that no family of Hugging Face has, and a chat template."""
    source = small_source("nanochat-2026-07", "bpe")
    source.model.to(torch.bfloat16)
    source.tokenizer.chat_template, source.tokenizer.template_variables = TEMPLATE, {"eos_token": "<|endoftext|>"}
    return export_source(source, "safetensors", tmp_path_factory.mktemp("folder") / "exported", "stored", "skip").path


def test_it_is_the_model_that_was_exported(folder: Path) -> None:
    source = small_source("nanochat-2026-07", "bpe")
    model, tokenizer = load(folder)
    assert find_source(folder).kind == "exported folder"
    assert model.config == source.model.config
    for name, weight in source.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.bfloat16()), name
    assert tokenizer.to_json() == source.tokenizer.to_json()
    assert tokenizer.chat_template == TEMPLATE


def test_import_export_and_diff(folder: Path, tmp_path: Path) -> None:
    run = normscope.import_model(folder, tmp_path / "run")
    found = normscope.diff(folder, run.folder)
    assert isinstance(found, ModelDiff)
    assert not found.differs
    again = normscope.export(run, "safetensors", out=tmp_path / "again", proof="skip").path
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_training_starts_from_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat and the hat " * 200)
    flags = ["--out", str(tmp_path / "tuned"), "--steps", "1", "--batch", "1", "--context", "8", "-q"]
    assert main(["train", str(tmp_path / "text.txt"), "--from", str(folder), *flags]) == 0
    assert load(tmp_path / "tuned")[0].config.smear


@pytest.mark.parametrize(
    "change", [{"depth": 3}, {"depth": "two"}, {"unknown": 1}, {"width": 33}, {"context": 50_000_000}]
)
def test_a_config_of_another_model_is_refused(folder: Path, change: dict[str, object], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder, tmp_path / "exported"))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(NormscopeError, match=r"exported(.|\n)*\nfix: "):
        load(folder)
