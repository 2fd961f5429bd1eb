"""Hints about the training loop are optional, checked, and reach watchers and the record."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.stats.hints import HintStats
from normscope.errors import ConfigError


def taken(**hints: Any) -> HintStats | None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.Adam(model.parameters())
    if hints.pop("both", False):
        hints["optimizer"] = [optimizer, other]
    with Xray(model, **hints) as x:
        mse_loss(model(torch.ones(4, 2)), torch.ones(4, 1)).backward()
        optimizer.step()
    return x.record.hints


def test_without_hints_nothing_is_recorded() -> None:
    assert taken() is None


def test_hints_are_recorded_with_what_came_of_them() -> None:
    expected = HintStats(("SGD", "Adam"), ("Adam",), "mse_loss", 3)
    assert taken(both=True, loss=mse_loss, loader=[1, 2, 3]) == expected
    assert taken(loss=nn.MSELoss()) == HintStats(loss="MSELoss")


def test_the_length_of_a_stream_is_unknown() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    assert taken(loader=DataLoader(Stream())) is None
    assert taken(loader=iter([1])) is None


@pytest.mark.parametrize("hints", [{"optimizer": 0.1}, {"loss": "mse"}, {"loader": 3}])
def test_what_is_no_hint_is_refused(hints: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)is not|cannot.*fix: "):
        taken(**hints)


def _train(hint: bool, **hints: Any) -> list[tuple[str, str]]:
    model = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    if hint:
        hints["optimizer"] = [optimizer, other]
    with Xray(model, **hints) as x:
        for number in range(6):
            optimizer.zero_grad()
            inputs = torch.randn(16, 2, generator=torch.Generator().manual_seed(number))
            mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
            optimizer.step()
            schedule.step()
    return [(finding.name, finding.title) for finding in x.findings if finding.severity != "note"]


def test_an_optimizer_that_should_step_and_does_not() -> None:
    assert _train(hint=False) == []
    assert _train(hint=True) == [("weights-unchanged", "SGD never stepped during 6 backward passes")]


def test_a_schedule_of_epochs_that_is_stepped_for_each_batch() -> None:
    assert _train(hint=False, loader=range(10)) == []
    [(name, title)] = _train(hint=False, loader=range(100))
    assert name == "schedule-too-fast"
    assert title.endswith("its T_max of 10 ends within an epoch of 100")
