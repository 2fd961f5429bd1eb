"""The tracer reports module calls, functions and backward passes, and leaves nothing behind."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall, TraceObserver, Tracer


class Events(TraceObserver):
    """Write down every event."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def enter_module(self, module: nn.Module, name: str | None, args: Any, kwargs: Any, frames: Sequence[Any]) -> Any:
        self.seen.append(("enter", name, tuple(frames)))
        return name

    def exit_module(self, frame: Any, output: Any) -> None:
        self.seen.append(("exit", frame, isinstance(output, Tensor)))

    def call_function(self, call: FunctionCall) -> Any:
        self.seen.append((call.name, *call.frames))
        return call.run()

    def exit_backward(self, name: str, module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
        self.seen.append(("backward", name))


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        y: Tensor = self.inner(x)
        if fails:
            raise RuntimeError("in forward")
        return y


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def test_events_come_in_order_with_the_frames_around_them() -> None:
    model, observer, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Events(), torch.ones(1, 2)
    with Tracer(model, observer) as tracer:
        tracer.watch_modules()
        tracer.watch_functions()
        model(x)
    assert observer.seen[:4] == [("enter", "", ()), ("enter", "0", ("",)), ("linear", "", "0"), ("exit", "0", True)]
    assert observer.seen[4:] == [("enter", "1", ("",)), ("relu", "", "1"), ("exit", "1", True), ("exit", "", True)]
    assert hooks_of(model) == 0


def test_the_backward_pass_of_a_module_is_reported() -> None:
    model, observer = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Events()
    with Tracer(model, observer) as tracer:
        tracer.watch_backward([model[1], model[0]])
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert observer.seen == [("backward", "1"), ("backward", "0")]


def test_after_an_error_the_next_call_starts_with_no_frames() -> None:
    model, observer, x = Fails(), Events(), torch.ones(1, 2)
    with Tracer(model, observer) as tracer:
        tracer.watch_modules()
        with pytest.raises(RuntimeError, match="in forward"):
            model(x, fails=True)
        assert tracer.frames == []
        assert observer.seen[-1] == ("exit", "", False)
        observer.seen.clear()
        model(x)
    assert observer.seen[0] == ("enter", "", ())
    assert hooks_of(model) == 0


def test_multi_head_attention_is_decomposed() -> None:
    model, observer, x = nn.MultiheadAttention(4, 2), Events(), torch.ones(3, 1, 4)
    with Tracer(model, observer) as tracer:
        tracer.watch_functions()
        model(x, x, x, need_weights=False)
    names = [event[0] for event in observer.seen]
    assert "scaled_dot_product_attention" in names
    assert F.multi_head_attention_forward.__name__ not in names


def test_a_tensor_table_forgets_freed_and_changed_tensors() -> None:
    table = TensorTable[str](lambda tensor: tensor._version)
    x, y = torch.ones(2), torch.ones(2)
    table.put(x, "x")
    table.put(y, "y")
    assert (table.get(x), table.get(y), table.get(torch.ones(2))) == ("x", "y", None)
    x.add_(1)
    assert table.get(x) is None
    del y
    assert len(table) == 1
