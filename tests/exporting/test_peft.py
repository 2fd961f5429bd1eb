"""The adapters of a run in peft, on the model that the run started from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.blocks.lora import lora_layers
from normscope.data.tokenizers import ByteTokenizer
from normscope.errors import ConfigError
from normscope.exporting.export import ExportError, export
from normscope.interop import peft as format_
from normscope.runs.run import Run
from normscope.training.loop import train_run
from normscope.training.train import train
from tests.training.small_run import TEXT, new_run

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with adapters on a GPT-2, whose q, k and v are one layer in transformers."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "text.txt").write_text(TEXT)
    gpt2: dict[str, Any] = {"depth": 2, "width": 32, "heads": 2, "context": 64}
    quiet: dict[str, Any] = {"quiet": True, "sample_every": 0}
    source = train(folder / "text.txt", preset="gpt2", out=folder / "gpt2", steps=2, tokenizer="bpe", **gpt2, **quiet)
    return train(folder / "text.txt", init_from=source.folder, out=folder / "tuned", steps=8, lora=3, lr=0.03, **quiet)


def test_the_export_is_proved_in_peft(run: Run, tmp_path: Path) -> None:
    done = export(run, "peft", out=tmp_path / "adapter", proof="require")
    assert done.proof is not None
    assert done.proof.runtime.startswith("peft ")
    model, _ = run.load_trained_model()
    found = format_.read_adapters(tmp_path / "adapter", run.config.model)
    assert found.keys() == lora_layers(model).keys()
    assert max(adapter.b.abs().max().item() for adapter in found.values()) > 0


def test_a_wrong_adapter_is_noticed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = format_._fuse

    def without_scale(*args: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
        a, b, scale = fuse(*args)
        return a, b, scale / 2

    monkeypatch.setattr(format_, "_fuse", without_scale)
    with pytest.raises(ExportError, match="differs in peft"):
        export(run, "peft", out=tmp_path / "adapter")


def test_a_run_without_adapters_is_refused(tmp_path: Path) -> None:
    plain = new_run(tmp_path, steps=2, eval_every=0, save_every=0)
    train_run(plain)
    with pytest.raises(ConfigError, match="has no LoRA adapters"):
        export(plain, "peft")


def test_the_layers_have_the_names_of_the_model_that_the_run_started_from(tmp_path: Path) -> None:
    """A Phi-3 computes what a Llama does, but its layers have other names: peft would leave out those of a Llama."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.Phi3Config(vocab_size=257, max_position_embeddings=64, **sizes, **ids)
    transformers.Phi3ForCausalLM(config).save_pretrained(tmp_path / "phi3")
    ByteTokenizer().save(tmp_path / "phi3" / "tokenizer.json")
    (tmp_path / "text.txt").write_text(TEXT)
    tuned = train(
        tmp_path / "text.txt", init_from=tmp_path / "phi3", out=tmp_path / "tuned", steps=2, lora=2, quiet=True,
        sample_every=0,
    )  # fmt: skip
    done = export(tuned, "peft", out=tmp_path / "adapter", proof="require")
    assert done.proof is not None
    assert "Phi3ForCausalLM" in done.proof.runtime
    targets = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert {name.rpartition(".")[2] for name in targets} == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
