"""The adapters of a run in peft, on the model that the run started from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.blocks.lora import lora_layers
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
