"""The callback of transformers' Trainer: with a real Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from normscope.diagnostics.record_json import load_record
from normscope.errors import ConfigError
from normscope.integrations.huggingface import XrayCallback


class Classifier(nn.Module):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.calls, self._fails_at = 0, fails_at

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == self._fails_at:
            raise ArithmeticError
        logits = self.net(x).softmax(-1)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trained(model: nn.Module, folder: Path, *callbacks: XrayCallback, steps: int = 6) -> list[torch.Tensor]:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(64)]
    settings: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    accumulate: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments(str(folder), max_steps=steps, **accumulate, **settings)
    Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)).train()
    return [parameter.detach() for parameter in model.parameters()]


def test_first_steps_are_xrayed_and_findings_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = XrayCallback(steps=3, save=tmp_path / "xray.json")
    weights = trained(Classifier(), tmp_path, callback)
    out = capsys.readouterr().out
    assert "is passed to a cross-entropy" in out.replace("\n", " ")
    assert f"wrote {tmp_path / 'xray.json'}\n" in out
    assert callback.xray is not None
    record = callback.xray.record
    assert (record.model, record.batches, len(record.steps)) == ("Classifier", 6, 3)
    assert record.hints is not None
    assert record.hints.batches_per_epoch == 16
    assert load_record(tmp_path / "xray.json") == record
    plain = trained(Classifier(), tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))


def test_a_shorter_training_ends_the_xray(tmp_path: Path) -> None:
    callback = XrayCallback(steps=30)
    trained(Classifier(), tmp_path, callback, steps=2)
    assert callback.xray is not None
    assert len(callback.xray.record.steps) == 2


def test_a_training_after_a_failed_one_has_its_own_xray(tmp_path: Path) -> None:
    callback = XrayCallback(steps=3)
    with pytest.raises(ArithmeticError):
        trained(Classifier(fails_at=3), tmp_path, callback)
    failed = callback.xray
    trained(Classifier(), tmp_path, callback)
    assert callback.xray is not None
    assert callback.xray is not failed
    assert len(callback.xray.record.steps) == 3


def test_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps=0"):
        XrayCallback(steps=0)
