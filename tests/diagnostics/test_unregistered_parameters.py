"""Whose weights ran, whether gradients were emptied, and what is told of an input that nobody scaled."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import UnregisteredParameter
from normscope.diagnostics.record_json import load_record, save_record
from tests.diagnostics.faults.training_mistakes import LayerList
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points


def _names(x: Xray) -> list[str]:
    return [finding.name for finding in x.findings]


def test_weights_in_a_list_are_counted_once_and_saved(tmp_path: Path) -> None:
    model = LayerList()
    with Xray(model) as x:
        for i in range(3):
            model(points(i)[0]).square().mean().backward()
    assert x.record.unregistered_parameters == (
        UnregisteredParameter("", "linear", (16, 16), 3),
        UnregisteredParameter("", "linear", (16,), 3),
    )
    assert "6 weights" in x.findings[0].title
    assert "nn.ModuleList" in x.findings[0].fix
    save_record(x.record, tmp_path / "x.json")
    assert load_record(tmp_path / "x.json") == x.record


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.head = {"lstm": nn.LSTM(16, 8, batch_first=True)}, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.parts["lstm"](x)[0])
        return y


def test_recurrent_weights_in_a_dict_are_seen() -> None:
    model = Recurrent()
    with Xray(model) as x:
        model(torch.randn(4, 5, 16)).square().mean().backward()
    assert sum(stranger.count for stranger in x.record.unregistered_parameters) == 4
    assert {stranger.function for stranger in x.record.unregistered_parameters} == {"lstm"}


@pytest.mark.skipif(sys.platform == "win32", reason="torch.compile wants a compiler")
def test_weights_of_a_compiled_model_are_its_own() -> None:
    model = mlp(16, 32, 4)
    compiled: Any = torch.compile(model, backend="eager")
    with Xray(compiled) as x:
        compiled(points(0)[0]).square().mean().backward()
    assert x.record.unregistered_parameters == ()


def _train(model: nn.Module, empties: bool, steps: int) -> Xray:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    with Xray(model) as x:
        for i in range(steps):
            if empties:
                optimiser.zero_grad()
            inputs, labels = points(i)
            F.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
    return x


def test_gradients_that_pile_up_are_told_after_some_steps() -> None:
    assert _train(mlp(16, 32, 4), empties=False, steps=4).record.steps_without_zero_grad == 3
    assert _train(mlp(16, 32, 4), empties=True, steps=4).record.steps_without_zero_grad == 0
    assert _names(_train(mlp(16, 32, 4), empties=False, steps=2)) == []  # once may be meant


def test_two_optimisers_may_step_with_one_gradient() -> None:
    model = mlp(16, 32, 4)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2))
    with Xray(model) as x:
        for i in range(4):
            first.zero_grad()
            inputs, labels = points(i)
            F.cross_entropy(model(inputs), labels).backward()
            first.step()
            second.step()
    assert x.record.steps_without_zero_grad == 0


def test_column_that_is_not_scaled_is_named() -> None:
    model = mlp(8, 32, 3)
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    x[:, 5] *= 1e4
    with Xray(model) as look:
        F.cross_entropy(model(x), torch.arange(256) % 3).backward()
    finding, scale = look.findings
    assert (scale.name, scale.module) == ("unscaled-input", "0")
    assert (finding.name, finding.module) == ("loss-above-chance", "0")
    assert "Column 5 has an rms of" in finding.why
    assert finding.fix.startswith("normalize the input, especially column 5")


def test_large_head_is_blamed_although_the_input_is_large() -> None:
    model: Any = mlp(16, 32, 4, activation=nn.Tanh)
    with torch.no_grad():
        model[-1].weight.mul_(50.0)
    inputs, labels = points(0)
    with Xray(model) as x:
        F.cross_entropy(model(10 * inputs), labels).backward()
    finding = next(finding for finding in x.findings if finding.name == "loss-above-chance")
    assert finding.module == "2"
    assert finding.fix.startswith("use a smaller initialization for `2`")
