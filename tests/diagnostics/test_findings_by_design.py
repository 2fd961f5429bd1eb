"""What looks like a fault of weights and is meant: parts that start at zero, alike, or small; and what is one still."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnostics.findings import find
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import LossRecord, ModuleRecord, ParameterRecord
from tests.diagnostics.test_findings import linear, names, record, signal, weight


def test_all_gradients_of_zero_are_one_finding_of_the_model() -> None:
    silent = [linear(f"{i}", i + 1, parameters=(weight(gradient=0.0),)) for i in range(3)]
    assert names(record(*silent)) == [("note", "zero-gradient", "")]  # a loss that is flat once all have learnt
    assert names(record(*silent, losses=(LossRecord(0.7, 4),))) == [("warning", "zero-gradient", "")]
    half = [replace(module, dtype="float16") for module in silent]
    assert names(record(*half)) == [("warning", "zero-gradient", "")]


def test_gain_of_zero_with_a_gradient_is_a_start_and_a_bias_of_zero_is_none() -> None:
    below = linear("below", 1, parameters=(weight(gradient=0.0),))

    def beside(*parameters: ParameterRecord) -> list[tuple[str, str, str]]:
        return names(record(below, ModuleRecord("part", "Part", order=2, output=signal(), parameters=parameters)))

    zero: dict[str, Any] = {"rms": 0.0, "gradient": 0.1, "predicted_gain": None}
    one: dict[str, Any] = {"rms": 1.0, "gradient": 0.1, "predicted_gain": None}
    assert beside(weight("alpha", shape=(), **zero)) == []
    assert beside(weight(shape=(8,), **zero), weight("bias", shape=(8,), **zero)) == []
    fault = [("warning", "zero-gradient", "below")]
    assert beside(weight("bias", shape=(8,), **zero)) == fault
    assert beside(weight("alpha", shape=(8,), **one), weight("beta", shape=(8,), **zero)) == fault


def test_matrices_that_start_alike_by_design_are_no_copies() -> None:
    same = weight(content_hash="same")

    def two(**more: Any) -> list[tuple[str, str, str]]:
        other = replace(same, **more)
        return names(record(linear("a", 1, parameters=(other,)), linear("b", 2, parameters=(other,))))

    assert two() == [("warning", "duplicate-weights", "b")]
    assert two(name="A_log", predicted_gain=None) == []
    assert two(values=replace(same.values, zeros=0.97)) == []
    target = replace(same, gradient=None)
    assert names(record(linear("a", 1, parameters=(same,)), linear("b", 2, parameters=(target,)))) == [
        ("note", "no-gradient", "b")
    ]


def test_last_of_layers_that_follow_each_other_may_be_small() -> None:
    layers = [linear(f"{i}", i + 1, parameters=(weight(rms=0.001 if i == 4 else 0.1),)) for i in range(5)]
    assert find(record(*layers)) == []
    layers[2] = replace(layers[2], parameters=(weight(rms=0.001),))
    assert names(record(*layers)) == [("warning", "outlier-weights", "2")]


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("out of memory")


class Halfway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(Refuses.apply(self.first(x)))  # type: ignore[no-untyped-call]
        return y


def test_an_error_on_the_way_back_is_told_and_no_weight_is_blamed_for_it() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), Xray(Halfway()) as x:
        x._model(torch.randn(4, 8)).sum().backward()
    assert x.record.interrupted
    assert x.findings == []
    assert x.record.notices == ("the block was interrupted by RuntimeError: the record is incomplete",)
