"""Long x-rays measure some of the steps, and count all of them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normscope.diagnostics.collect.sampling import Sampling
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.late = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.last(torch.relu(self.first(x)))
        return logits if self.calls <= 25 else self.late(logits)


def trained(steps: int) -> XrayRecord:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    with Xray(model) as x:
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(torch.randn(16, 4)), torch.randint(3, (16,))).backward()
            optimizer.step()
    return x.record


def measured_values(record: XrayRecord, name: str) -> int:
    output = record[name].output
    assert output is not None
    return output.count


def test_twenty_steps_are_measured_in_full() -> None:
    record = trained(20)
    assert record.notices == ()
    assert measured_values(record, "first") == 20 * 16 * 8


def test_of_later_steps_one_in_seven_is_measured_and_all_are_counted() -> None:
    record = trained(36)
    assert "23 of 36 steps" in record.notices[0]  # and steps 21, 28 and 35
    assert measured_values(record, "first") == 23 * 16 * 8
    assert record["first"].calls == record["relu()"].calls == record.batches == record.backward_passes == 36
    assert len(record.steps) == len(record.losses) == 36
    assert record["first"].flops == 2 * 16 * 4 * 8


def test_the_first_call_and_the_first_gradient_are_always_measured() -> None:
    record = trained(27)  # the last layer runs in the steps 25 and 26, which are not measured otherwise
    assert measured_values(record, "late") == 16 * 3
    assert all(parameter.gradient is not None for parameter in record["late"].parameters)


def test_passes_without_steps_count_as_steps() -> None:
    sampling = Sampling()
    for _ in range(16 * 21):
        sampling.begin_pass()
    assert sampling.steps == 20
    assert not sampling.is_measuring


def test_a_step_that_fails_does_not_stop_the_recording_of_functions() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=math.inf)

    def fail(*_: object) -> None:
        raise ArithmeticError

    with Xray(model) as x:
        handle = optimizer.register_step_pre_hook(fail)
        with pytest.raises(ArithmeticError):
            optimizer.step()
        handle.remove()
        model(torch.ones(2, 4))
    assert x.record["relu()"].calls == 1
