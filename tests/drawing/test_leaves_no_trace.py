"""Drawing changes nothing that a model keeps, takes whatever it returns, and is XML whatever the names are."""

import dataclasses
from typing import Any
from xml.dom import minidom

import pytest
import torch
from torch import Tensor, nn

from normscope.drawing.draw_model import draw_model


class Counts(nn.Module):
    """Looks at numbers, so that it is run for real, and counts in plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), torch.zeros(1)
        self.sums, self.by_name = [torch.zeros(2)], {"largest": torch.zeros(1)}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sums[0] += x.sum()
        self.by_name["largest"].fill_(x.abs().max().item())
        y: Tensor = self.layer(x)
        return y


def test_values_of_plain_tensors_are_restored() -> None:
    model = Counts()
    draw_model(model, torch.randn(2, 4))
    assert [float(t.abs().sum()) for t in (model.calls, model.sums[0], model.by_name["largest"])] == [0.0] * 3


@dataclasses.dataclass
class Output:
    logits: Tensor
    loss: float = 0.0


class Returns(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


@pytest.mark.parametrize(
    "wrap", [Output, lambda y: {"outputs": [y]}, lambda y: (None, {"deep": (Output(y),)})], ids=["1", "2", "3"]
)
def test_outputs_in_any_container(wrap: Any) -> None:
    assert "Linear" in str(draw_model(Returns(wrap), torch.randn(2, 4)))


def test_names_that_xml_cannot_represent() -> None:
    model = nn.Sequential()
    model.add_module("a\x00b\x1b\ud800", nn.Linear(4, 4))
    model.add_module("<&", nn.Tanh())
    minidom.parseString(draw_model(model, torch.randn(2, 4), title="\x07 & more").svg)
