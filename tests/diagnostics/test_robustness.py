"""What a model does while the x-ray looks it does as ever: what cannot be looked at is told, and raises nothing."""

import copy
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import normscope
from normscope.diagnostics.collect.accumulators import ModuleAccumulator
from normscope.diagnostics.collect.functions import FunctionObserver
from normscope.diagnostics.collect.modules import XrayObserver
from tests.diagnostics.networks import mlp

WEIGHT = torch.randn(4, 3, 2, 2)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "matmul by name": lambda x: torch.matmul(input=x, other=x),
    "mm by name": lambda x: torch.mm(input=x[0, 0], mat2=x[0, 0]),
    "bmm by name": lambda x: torch.bmm(input=x[0], mat2=x[0]),
    "addmv by name": lambda x: torch.addmv(x[0, 0, 0], mat=x[0, 0], vec=x[0, 0, 0]),
    "convolution by name": lambda x: F.conv_transpose2d(input=x, weight=WEIGHT),
    "relu by name": lambda x: F.relu(input=x),
    "value by name": lambda x: F.scaled_dot_product_attention(x, x, value=x),
    "key and value by name": lambda x: F.scaled_dot_product_attention(x, key=x, value=x),
    "softmax over nothing": lambda x: torch.softmax(x[..., :0], -1),
    "attention to nothing": lambda x: F.scaled_dot_product_attention(x, x[:, :, :0], x[:, :, :0]),
    "no rows in float64": lambda x: torch.tanh(x[:0].double()),
    "no columns": lambda x: torch.relu(x[..., :0]),
    "eight bits": lambda x: x.to(torch.float8_e4m3fn),
    "nested": lambda x: torch.nested.nested_tensor([x[0, 0].detach(), x[0, 1, :3].detach()]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0, 0].detach(), x[0, 1, :3].detach()], layout=torch.jagged),
    "sparse": lambda x: torch.relu(x[0, 0].detach().to_sparse()),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", CALLS)
def test_functions_as_they_may_be_called(name: str) -> None:
    model = Calls(CALLS[name])
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    with normscope.xray(model) as seen:
        model(x)
    assert seen.record[""].calls == 1
    assert seen.record.notices == ()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_modules_that_are_given_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 0), nn.ReLU(), nn.Linear(0, 4), nn.LayerNorm(4), nn.Tanh()).double()
    with normscope.xray(model) as seen, warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(3, 4).double())
        model(torch.randn(0, 4).double())
    assert seen.record["4"].calls == 2
    assert seen.record["0"].output is not None
    assert seen.record["2"].features is not None


def test_weights_of_eight_bits_and_of_no_numbers() -> None:
    model: Any = nn.Linear(4, 4)
    model.scale = nn.Parameter(torch.full((4,), 2.0).to(torch.float8_e4m3fn), requires_grad=False)
    model.none = nn.Parameter(torch.zeros(0, 4))
    with normscope.xray(model) as seen:
        model(torch.randn(2, 4)).sum().backward()
    found = {parameter.name: parameter for parameter in seen.record[""].parameters}
    assert found["scale"].values.rms == 2.0
    assert "none" not in found


@pytest.mark.usefixtures("forgiving")
@pytest.mark.parametrize(
    ("place", "method"),
    [
        (XrayObserver, "_count"),
        (XrayObserver, "_take_inputs"),
        (XrayObserver, "_take_outputs"),
        (FunctionObserver, "_find_join"),
        (FunctionObserver, "_observe"),
    ],
)
def test_an_error_of_the_x_rays_own_is_told_and_not_raised(
    place: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise IndexError("of its own")

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tanh(self.inner(x))

    model = nn.Sequential(Adds(), Adds())
    x = torch.randn(3, 4)
    plain = model(x)
    monkeypatch.setattr(place, method, fail)
    with normscope.xray(model) as seen:
        y = model(x)
        y.sum().backward()
    assert torch.equal(y, plain)
    told = [notice for notice in seen.record.notices if "IndexError: of its own" in notice]
    assert 1 <= len(told) <= 3  # once of each kind, not of each call
    assert seen.record["0.inner"].parameters[0].gradient is not None


@pytest.mark.usefixtures("forgiving")
def test_an_error_on_the_way_back_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def fail(*_: Any) -> None:
        raise IndexError("of its own")

    monkeypatch.setattr(ModuleAccumulator, "add_gradient", fail)
    with normscope.xray(model) as seen:
        model(torch.randn(3, 4)).sum().backward()
    assert model[0].weight.grad is not None
    assert any("could not measure the gradient of `1`" in notice for notice in seen.record.notices)


def test_a_shallow_copy_of_a_module_that_has_its_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with normscope.xray(model) as seen:
        copy.copy(model[0])(torch.randn(3, 4))
        model(torch.randn(3, 4))
    assert [module.calls for module in seen.record.modules] == [1, 1, 1]
    assert any("calls of a copied module" in notice for notice in seen.record.notices)


def test_several_threads() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    failed: list[Exception] = []

    def call() -> None:
        try:
            for _ in range(25):
                model(torch.randn(8, 16))
        except Exception as error:
            failed.append(error)

    with normscope.xray(model) as seen:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert seen.record.batches == 100
    for name in ("", "0", "3"):
        output = seen.record[name].output
        assert output is not None
        assert (seen.record[name].calls, output.count) == (100, 100 * 8 * 16)
    assert any("another thread" in notice for notice in seen.record.notices)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_scripted_parts_and_tracing() -> None:
    inner: Any = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(inner, nn.Linear(4, 2))
    with normscope.xray(model) as seen:
        model(torch.randn(3, 4)).sum().backward()
    assert [module.name for module in seen.record.ran] == ["", "1"]
    assert seen.record["0.0"].parameters[0].gradient is not None
    assert any("scripted" in notice for notice in seen.record.notices)
    plain = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
    with normscope.xray(plain) as seen:
        traced: Any = torch.jit.trace(plain, torch.randn(3, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(traced(x), plain(x))
    assert any("torch.jit.trace" in notice for notice in seen.record.notices)


def test_lazy_weights_are_seen_once_they_are_there() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with normscope.xray(model) as seen:
        model(torch.randn(4, 3, 5, 5)).square().sum().backward()
    assert [module.kind for module in seen.record.ran[1:3]] == ["Conv2d", "BatchNorm2d"]
    weights = [parameter for module in seen.record.modules for parameter in module.parameters]
    assert len(weights) == 6
    assert all(weight.gradient is not None for weight in weights)


def test_models_without_memory() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))

    records = []
    meta = make().to("meta")
    with normscope.xray(meta) as seen:
        F.cross_entropy(meta(torch.randn(2, 4, device="meta")), torch.zeros(2, dtype=torch.long, device="meta"))
    records.append(seen.record)
    with FakeTensorMode():
        fake = make()
        with normscope.xray(fake) as seen:
            F.cross_entropy(fake(torch.randn(2, 4)), torch.zeros(2, dtype=torch.long)).backward()
    records.append(seen.record)
    for record in records:
        assert [module.name for module in record.ran] == ["", "0", "1", "2", "3"]
        assert record["0"].flops == 2 * 2 * 4 * 4
        assert record.losses == ()
        assert len([notice for notice in record.notices if "on the meta device" in notice]) == 1


def test_an_error_of_the_users_is_not_hidden_by_one_at_the_end() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def run() -> None:
        model(torch.randn(2, 4))
        model.to("meta")
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"), normscope.xray(model) as seen:
        run()
    assert seen.record["0"].calls == 1


@pytest.mark.parametrize("training", [False, True])
def test_the_fast_way_of_encoders_is_not_taken_and_that_is_told(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    with normscope.xray(model) as seen, torch.no_grad():
        model(torch.randn(3, 5, 16))
    assert any("padded positions" in notice for notice in seen.record.notices) == (not training)
    with normscope.xray(model) as seen:
        model(torch.randn(3, 5, 16))
    assert seen.record.notices == ()


@pytest.mark.skipif(sys.platform == "win32", reason="torch.compile wants a compiler")
def test_a_compiled_function_that_calls_the_model() -> None:
    model = mlp(4, 8, 8, 2)
    step = torch.compile(lambda x: model(x).sum(), backend="eager")
    x = torch.randn(3, 4)
    step(x)
    with warnings.catch_warnings(), normscope.xray(model) as seen:
        warnings.simplefilter("error")
        step(x).backward()
    assert seen.record["2"].gradient is not None
    assert seen.record.notices == ("compiled code ran in eager mode during the x-ray",)
