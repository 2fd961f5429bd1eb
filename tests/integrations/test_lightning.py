"""The callback of Lightning's Trainer: with a real Trainer, under both names of the library."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning gives advice as warnings


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    other = {"lightning.pytorch": "pytorch_lightning", "pytorch_lightning": "lightning.pytorch"}[request.param]
    monkeypatch.delitem(sys.modules, "normscope.integrations.lightning", raising=False)
    found = pytest.importorskip(request.param)
    monkeypatch.delitem(sys.modules, other, raising=False)
    return found


def fitted(lightning: Any, *callbacks: Any, fails_at: int = -1, optimizers: int = 1) -> None:
    class Task(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = optimizers == 1
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

        def training_step(self, batch: Any, number: int) -> torch.Tensor | None:
            if number == fails_at:
                raise ArithmeticError
            loss = nn.functional.cross_entropy(self.net(batch[0]).softmax(-1), batch[1])
            if self.automatic_optimization:
                return loss
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            return None

        def validation_step(self, batch: Any, number: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            halves = [self.parameters()] if optimizers == 1 else [self.net[0].parameters(), self.net[2].parameters()]
            found = [torch.optim.Adam(half) for half in halves]
            return found if optimizers > 1 else found[0]

    data = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64) % 3), 8)
    settings = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, callbacks=list(callbacks), enable_model_summary=False, **settings)
    trainer.fit(Task(), data, data)


def callback_class() -> Any:
    return importlib.import_module("normscope.integrations.lightning").XrayCallback


def test_first_steps_are_xrayed(lightning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = callback_class()(steps=3, save=tmp_path / "xray.html")
    assert isinstance(callback, lightning.Callback)
    fitted(lightning, callback)
    assert "is passed to a cross-entropy" in capsys.readouterr().out.replace("\n", " ")
    record = callback.xray.record
    assert (record.model, record.backward_passes, len(record.steps)) == ("Task", 3, 3)
    assert record.hints.batches_per_epoch == 8
    assert (tmp_path / "xray.html").exists()


def test_steps_count_for_each_of_several_optimizers(lightning: Any) -> None:
    callback = callback_class()(steps=3)
    fitted(lightning, callback, optimizers=2)
    assert len(callback.xray.record.steps) == 6


def test_an_error_ends_the_xray(lightning: Any) -> None:
    callback = callback_class()(steps=30)
    with pytest.raises(ArithmeticError):
        fitted(lightning, callback, fails_at=2)
    assert callback.xray.record.interrupted
    assert len(callback.xray.record.steps) == 2
