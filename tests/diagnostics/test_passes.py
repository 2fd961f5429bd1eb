"""Figures over passes of other kinds: in place, accumulated, checkpointed, differentiated twice, or many."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normscope
from normscope.diagnostics.collect import parameters
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.watchers.losses import watcher as losses


class InPlace(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.relu, self.b, self.way = nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), way

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.a(x))
        if self.way == "data":
            h.data.mul_(100.0)
        else:
            h.mul_(100.0)
        y: Tensor = self.b(h)
        return y


@pytest.mark.parametrize("way", ["method", "data"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_changed_in_place_is_measured_again(way: str, mode: Any) -> None:
    model, inputs = InPlace(way), torch.randn(64, 16)
    hidden = model.a(inputs).relu().detach()
    with mode(), normscope.xray(model) as x:
        model(inputs)
    before, relu, after = x.record["a"].output, x.record["relu"].output, x.record["b"].input
    assert before is not None
    assert relu is not None
    assert after is not None
    assert before.min < 0
    assert relu.min == 0.0
    assert relu.zeros == pytest.approx(float((hidden == 0).double().mean()))
    assert relu.rms == pytest.approx(float(hidden.square().mean().sqrt()), rel=1e-5)
    assert after.rms == pytest.approx(100 * relu.rms, rel=1e-5)
    assert x.record["relu"].fed_by == ("a",)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).view(2, 3, 8)
        y: Tensor = x + self.last(self.norm(x)).reshape(2, 3, 8)
        return y


def test_inference_mode_knows_who_made_what_as_well() -> None:
    model, found = Residual(), []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), normscope.xray(model) as x:
            model(torch.randn(6, 8))
        joins = [(join.stream_source, join.branch_source) for join in x.record[""].joins]
        found.append((joins, x.record["norm"].fed_by, x.record["last"].fed_by))
    assert found[0] == found[1] == ([("first", "last")], ("first",), ("norm",))


def test_a_gradient_is_that_of_the_pass_and_not_what_was_there_before() -> None:
    model, batches = nn.Linear(4, 4), [torch.randn(8, 4) for _ in range(4)]
    (1000 * model(batches[0]).sum()).backward()
    with normscope.xray(model) as x:
        for batch in batches:
            model(batch).square().mean().backward()
    own = []
    for batch in batches:
        model.zero_grad()
        model(batch).square().mean().backward()
        assert model.weight.grad is not None
        own.append(model.weight.grad.clone())
    gradient = x.record[""].parameters[0].gradient
    assert gradient is not None
    assert gradient.rms == pytest.approx(float(torch.stack(own).square().mean().sqrt()), rel=1e-5)
    assert x.record.backward_passes == 4


class Again(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.a, self.reentrant = nn.Linear(8, 8), reentrant

    def forward(self, x: Tensor) -> Tensor:
        def twice(y: Tensor) -> Tensor:
            z: Tensor = self.a(torch.tanh(self.a(y)))
            return z

        return twice(x) if self.reentrant is None else checkpoint(twice, x, use_reentrant=self.reentrant)


def test_all_batches_of_a_reentrant_checkpoint_have_gradients() -> None:
    batches = [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
    records: list[XrayRecord] = []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        model = Again(reentrant)
        with normscope.xray(model) as x:
            for i, batch in enumerate(batches):
                (model(batch) * 10**i).sum().backward()
        records.append(x.record)
    plain = records[0]["a"].gradient
    assert plain is not None
    for record in records[1:]:
        found = record["a"].gradient
        assert found is not None
        assert found.count == plain.count
        assert found.rms == pytest.approx(plain.rms, rel=1e-6)
    assert records[1]["tanh()"].gradient == records[0]["tanh()"].gradient
    assert any("reentrant" in notice for notice in records[2].notices)


def test_a_gradient_that_is_part_of_the_loss_is_not_counted_as_one_of_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    inputs = torch.randn(16, 4, requires_grad=True)
    with normscope.xray(model) as x:
        output = model(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        (1e-3 * output.mean() + 1e-3 * (slope.norm(dim=1) - 1).square().mean()).backward()
    gradient = x.record[""].gradient
    assert gradient is not None
    assert gradient.count == 16
    assert gradient.rms == pytest.approx(1e-3 / 16)
    assert x.record.backward_passes == 1
    assert any("create_graph" in notice for notice in x.record.notices)


def test_the_gradient_of_a_sparse_table() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    model, tokens = nn.Sequential(table, nn.Linear(4, 4)), torch.tensor([[1, 2, 2], [5, 1, 7]])
    with normscope.xray(model) as x:
        model(tokens).square().sum().backward()
    assert table.weight.grad is not None
    dense = table.weight.grad.to_dense()
    gradient = x.record["0"].parameters[0].gradient
    assert gradient is not None
    assert gradient.count == 40
    assert gradient.zeros == pytest.approx(float((dense == 0).double().mean()))
    assert gradient.rms == pytest.approx(float(dense.square().mean().sqrt()), rel=1e-5)
    assert [finding for finding in x.findings if finding.name == "no-gradient"] == []


@pytest.mark.parametrize("unbatched", [False, True])
def test_units_and_features_of_an_image_alone(unbatched: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 1))
    with normscope.xray(model) as x:
        model(torch.randn(1, 4, 5) if unbatched else torch.randn(7, 1, 4, 5))
    features, units = x.record["3"].features, x.record["2"].units
    assert features is not None
    assert units is not None
    assert (features.count, units.count) == (2, 2)


def test_an_activation_at_several_places() -> None:
    """Its units are those of each place, though they are as many."""
    model: Any = nn.ModuleDict({"a": nn.Linear(8, 16), "b": nn.Linear(16, 16), "act": nn.ReLU()})
    nn.init.constant_(model["a"].bias, -100.0)

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = model["act"](model["b"](model["act"](model["a"](x))))
            return y

    whole = Shares()
    with normscope.xray(whole) as x:
        whole(torch.randn(512, 8))
    units = x.record["parts.act"].units
    assert units is not None
    assert (units.count, units.dead, units.samples, units.input_module) == (16, 16, 512, "parts.a")


class Steps(nn.Module):
    """A recurrent layer of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h = h + torch.tanh(self.mix(torch.cat([step, h], 1)))
        return h


def test_a_record_does_not_grow_with_calls_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parameters._MAX_STEPS, losses._MAX_LOSSES) == (1000, 1000)
    monkeypatch.setattr(parameters, "_MAX_STEPS", 100)
    monkeypatch.setattr(losses, "_MAX_LOSSES", 100)
    model = Steps()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    with normscope.xray(model) as x:
        model(torch.randn(2, 300, 8)).sum().backward()
        for _ in range(110):
            optimiser.step()
            F.cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    record = x.record
    assert len(record.modules) == 2 + 64
    assert record["tanh()#64"].calls == 300 - 63
    assert len(record[""].joins) <= 64
    assert (len(record.steps), len(record.losses)) == (100, 100)
    assert [notice for notice in record.notices if "more than 64 times" in notice]


class Branch(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = nn.Linear(8, 8), way
        self.gains = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.way == "dropout":
            y = F.dropout(y, 0.1)
        elif self.way == "factor":
            y = 3 * y
        elif self.way == "in place":
            y.mul_(3)
        elif self.way == "a gain for each feature":
            y = self.gains * y
        elif self.way == "a part of the texts":
            y = y.div(0.9) * torch.ones(len(x), 1)
        return (0.5 * x if self.way == "stream" else x) + y


@pytest.mark.parametrize(
    "way", ["dropout", "factor", "in place", "a gain for each feature", "a part of the texts", "stream"]
)
def test_joins_behind_factors_and_dropout(way: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Branch(way))
    with normscope.xray(model) as x:
        model(torch.randn(16, 8))
    (join,) = x.record["1"].joins
    assert (join.stream_source, join.branch_source) == ("0", "1.inner")
    output, stream = x.record["1.inner"].output, x.record["0"].output
    assert output is not None
    assert stream is not None
    if way == "in place":
        assert join.branch == pytest.approx(3 * output.rms, rel=1e-5)
    elif way == "a gain for each feature":
        assert join.branch == pytest.approx(0.1 * output.rms, rel=1e-5)
    elif way == "stream":
        assert join.stream == pytest.approx(0.5 * stream.rms, rel=1e-5)


class ResNetBlock(nn.Module):
    """A residual block with a projection shortcut; the order of the two sides differs between implementations."""

    def __init__(self, shortcut_first: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(3, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.shortcut_first = shortcut_first

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut_first:
            y: Tensor = self.downsample(x) + self.branch(x)
        else:
            y = self.branch(x)
            y += self.downsample(x)
        z: Tensor = self.relu(y)
        return z


@pytest.mark.parametrize("shortcut_first", [True, False])
def test_a_projection_shortcut_is_a_join(shortcut_first: bool) -> None:
    block = ResNetBlock(shortcut_first)
    with normscope.xray(block) as x:
        block(torch.randn(4, 3, 8, 8)).square().mean().backward()
    (join,) = x.record[""].joins
    assert (join.stream_source, join.branch_source) == ("downsample.1", "bn2")
    assert join.stream == pytest.approx(1.0, abs=1e-3)  # the shortcut ends with a batch norm


class SumOfTwoLinears(nn.Module):
    """W x + B A x, as LoRA computes it: no side is nonlinear, so neither is a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w(x) + self.b(self.a(x))
        return y


class RNNCell(nn.Module):
    """Both sides come from x, but from other time steps of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.ih(x[:, 0]))
        for t in range(1, x.shape[1]):
            h = torch.tanh(self.ih(x[:, t]) + self.hh(h))
        return h


@pytest.mark.parametrize(("model", "shape"), [(SumOfTwoLinears(), (3, 4)), (RNNCell(), (3, 5, 4))])
def test_a_sum_that_is_no_residual_is_no_join(model: nn.Module, shape: tuple[int, ...]) -> None:
    with normscope.xray(model) as x:
        model(torch.randn(shape))
    assert x.record[""].joins == ()
