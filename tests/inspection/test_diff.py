"""`diff`: two sources of any kind, what differs, and why; x-rays of records, functions and executions."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import normscope
from normscope.cli import main
from normscope.comparing.comparison import ModelDiff
from normscope.data.tokenizers.huggingface import train_bpe
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.errors import ConfigError, FileError
from normscope.runs.import_model import import_model
from tests.runs.tiny_checkpoint import write_huggingface


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face folders: llama, and gpt2 with the exact GELU."""
    folder = tmp_path_factory.mktemp("diff")
    write_huggingface(folder / "llama", torch.float32)
    config = GPT2Config(
        vocab_size=320,
        n_positions=48,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        activation_function="gelu",
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")  # type: ignore[no-untyped-call]
    shutil.copy(folder / "llama" / "tokenizer.json", folder / "gpt2" / "tokenizer.json")
    return folder


def changed_copy(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file({name: value.clone() for name, value in weights.items()}, target / "model.safetensors", {"format": "pt"})
    return target


def compared(one: Path, other: Path) -> ModelDiff:
    found = normscope.diff(one, other)
    assert isinstance(found, ModelDiff)
    return found


def test_a_folder_and_the_run_imported_from_it_are_equal(folder: Path, tmp_path: Path) -> None:
    run = import_model(folder / "llama", tmp_path / "run")
    found = compared(folder / "llama", run.folder)
    assert not found.differs
    assert found.weights is not None
    assert found.weights.count == 21
    assert found.runtime.tokenizers is not None
    assert "logits: equal at 48 positions (largest difference 0," in str(found)


def test_swapped_halves_of_the_queries_are_named(folder: Path, tmp_path: Path) -> None:
    def swap(weights: dict[str, torch.Tensor]) -> None:
        for i in range(2):
            name = f"model.layers.{i}.self_attn.q_proj.weight"
            weights[name] = weights[name].view(4, 2, 4, 32).flip(1).reshape(32, 32)

    text = str(compared(folder / "llama", changed_copy(folder / "llama", tmp_path / "swapped", swap)))
    assert "blocks.0.attention.q.weight: the halves of each head are swapped" in text
    assert "first layer that differs: blocks.0.attention.q " in text
    assert "cause: only the queries have their halves swapped" in text


def test_a_setting_that_differs_is_the_cause(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder / "gpt2", tmp_path / "tanh"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "activation_function": "gelu_new"}))
    found = compared(folder / "gpt2", other)
    assert [str(one) for one in found.structure or ()] == ["activation (activation): gelu and gelu-tanh"]
    assert not (found.weights and found.weights.differs)
    assert str(found.runtime.cause) == "the activation is gelu-tanh instead of gelu"


def test_bfloat16_weights_are_the_same_after_rounding(folder: Path, tmp_path: Path) -> None:
    def rounded(weights: dict[str, torch.Tensor]) -> None:
        weights |= {name: value.bfloat16() for name, value in weights.items()}

    found = compared(folder / "llama", changed_copy(folder / "llama", tmp_path / "bfloat16", rounded))
    assert found.weights is not None
    assert found.weights.rounded == 21
    assert not found.weights.differs


def test_tokenizers_of_equal_models_may_differ(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder / "llama", tmp_path / "other"))
    train_bpe(["the cat"], 290).save(other / "tokenizer.json")
    found = compared(folder / "llama", other)
    assert found.differs
    assert found.runtime.behavior is not None
    assert not found.runtime.behavior.differs
    assert "tokenizers: " in str(found)
    assert "classes differ of" in str(found)


def test_presets_are_compared_by_structure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "gpt2", "gpt2"]) == 0
    assert main(["diff", "gpt2", "llama", "--depth", "4"]) == 1
    out = capsys.readouterr().out
    assert "position embedding (positions): learned and rotary" in out
    assert "number of blocks" not in out  # the same depth
    assert "note: llama is a preset: it has no weights and no tokenizer" in out


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    assert main(["diff", "llama", "llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"]["behavior"]["greedy_equal"] == 40
    assert main(["diff", "llama", "gpt2"]) == 1
    assert capsys.readouterr().out.startswith("llama and gpt2 differ\n\nstructure: ")
    assert main(["diff", "llama", "--cached"]) == 0
    assert main(["diff", "llama", "gpt2", "--xray"]) == 1
    assert main(["diff", "llama"]) == 2
    assert "nothing to compare llama with\nfix: " in capsys.readouterr().err


def test_the_kind_of_comparison_follows_from_what_is_compared(folder: Path, tmp_path: Path) -> None:
    assert main(["xray", str(folder / "llama"), "--forward-only", "--json", str(tmp_path / "a.json")]) == 0
    assert isinstance(normscope.diff(tmp_path / "a.json", tmp_path / "a.json"), RecordDiff)
    assert isinstance(normscope.diff(folder / "llama", folder / "llama", forward_only=True), RecordDiff)
    with pytest.raises(FileError, match="no such model: 'nowhere'"):
        normscope.diff("nowhere", folder / "llama")
    with pytest.raises(ConfigError, match="tolerance=-1 must be a finite number above zero"):
        normscope.diff(folder / "llama", folder / "llama", tolerance=-1)
