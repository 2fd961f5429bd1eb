"""What is counted: products of all kinds of layers, batches of models that are called in other ways, and gains."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope


def recurrent(kind: Any, **options: Any) -> tuple[nn.Module, Any, int]:
    model = kind(16, 32, **options)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    return model, torch.randn(2, 5, 16), 2 * 10 * matrices


@pytest.mark.parametrize(
    ("model", "inputs", "flops"),
    [
        recurrent(nn.LSTM, batch_first=True, num_layers=2, bidirectional=True),
        recurrent(nn.GRU),
        recurrent(nn.RNN),
        (nn.GRUCell(16, 32), torch.randn(2, 16), 2 * 2 * 96 * 48),
        (nn.LSTMCell(16, 32).requires_grad_(False), torch.randn(2, 16), 2 * 2 * 128 * 48),
    ],
    ids=["LSTM", "GRU", "RNN", "GRUCell", "LSTMCell"],
)
def test_products_of_recurrent_layers(model: nn.Module, inputs: Tensor, flops: int) -> None:
    with normscope.xray(model) as x:
        model(inputs)
    assert x.record[""].flops == flops


class Einsum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ab,bc,cd->ad", x, x, x)


def test_what_is_not_counted_is_not_zero() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Einsum())
    with normscope.xray(model) as x:
        model(torch.randn(4, 4))
    assert [x.record[name].flops for name in ("", "0", "1")] == [None, 128, None]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def loss(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.relu(self.a(x))).square().mean()
        return y

    def forward(self, x: Tensor, times: int = 3) -> Tensor:
        y: Tensor = self.b(x) if times == 0 else self(torch.relu(self.a(x)), times - 1)
        return y


def test_a_batch_of_a_model_that_is_not_called_itself() -> None:
    model = Parts()
    with normscope.xray(model) as x:
        for _ in range(10):
            model.loss(torch.randn(4, 8)).backward()
    assert (x.record.batches, x.record.backward_passes, x.record["a"].flops) == (10, 10, 2 * 4 * 8 * 8)
    assert any("only submodules were called" in notice for notice in x.record.notices)


def test_a_model_that_calls_itself() -> None:
    model = Parts()
    with normscope.xray(model) as x:
        for _ in range(2):
            model(torch.randn(4, 8))
    assert (x.record.batches, x.record[""].calls) == (2, 8)
    assert x.record[""].flops == 3 * 2 * 4 * 8 * 8 + 2 * 4 * 8 * 4


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 4)])
def test_the_gain_of_a_turned_convolution(stride: int, groups: int) -> None:
    model = nn.Sequential(nn.ConvTranspose2d(128, 8, 4, stride, groups=groups, bias=False))
    with normscope.xray(model) as x:
        model(torch.randn(4, 128, 32, 32))
    gain, output, entering = x.record["0"].parameters[0].predicted_gain, x.record["0"].output, x.record["0"].input
    assert gain is not None
    assert output is not None
    assert entering is not None
    assert output.rms / entering.rms == pytest.approx(gain, rel=0.1)
