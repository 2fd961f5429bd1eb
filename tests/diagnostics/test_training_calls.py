"""The x-ray hears the calls of a training loop, and leaves the functions of torch as they were."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, LRScheduler, StepLR
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.watchers.training_calls import listening


def _functions() -> list[Any]:
    schedulers = [kind.step for kind in (LRScheduler, ChainedScheduler)]
    return [
        torch.autograd.backward,
        Optimizer.zero_grad,
        nn.Module.zero_grad,
        nn.Module.__call__,
        vars(clip_grad).copy(),
        *schedulers,
    ]


def test_events_of_a_step_in_their_order() -> None:
    heard: list[tuple[Any, ...]] = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ChainedScheduler([LinearLR(optimizer), StepLR(optimizer, 1)])
    before = _functions()
    with listening(lambda *event: heard.append(event) if event[0] != "call_outside_module" else None):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).sum() * 10
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()  # steps two others
        model.zero_grad()
        torch.autograd.backward(iter([model(torch.ones(1, 2)).sum()]))  # type: ignore[arg-type]
    events = [event[0] for event in heard]
    backward = ["before_backward", "after_backward"]
    assert events == ["zero_grad", *backward, "clip_gradients", "step_schedule", "zero_grad", *backward]
    assert heard[1][1][0] is loss
    assert heard[3][2] == pytest.approx(10 * 48**0.5, rel=1e-5)
    assert heard[3][3] == 1.0
    assert heard[4][1] is scheduler
    assert _functions() == before


def test_functions_are_restored_when_the_last_listener_leaves() -> None:
    original = torch.autograd.backward
    with listening(lambda *_: None):
        with listening(lambda *_: None):
            pass
        assert torch.autograd.backward is not original
    assert torch.autograd.backward is original


def test_failing_backward_is_heard_and_functions_are_restored() -> None:
    heard: list[str] = []
    original = torch.autograd.backward
    with pytest.raises(RuntimeError, match="does not require grad"), listening(lambda event, *_: heard.append(event)):
        torch.ones(1).backward()
    assert heard == ["before_backward", "after_backward"]
    assert torch.autograd.backward is original


def test_backward_from_an_edge_of_the_graph_works_as_without_an_x_ray() -> None:
    heard: list[tuple[Any, ...]] = []
    model = nn.Linear(2, 1)
    with listening(lambda *event: heard.append(event)):
        edge = get_gradient_edge(model(torch.ones(4, 2)).sum())
        torch.autograd.backward(edge, torch.tensor(1.0))
    assert ("before_backward", []) in heard
    assert model.bias.grad == 4


def test_a_wrapper_that_someone_else_keeps_is_silent_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    with listening(lambda event, *_: heard.append(event)):
        kept = nn.Module.__call__
        monkeypatch.setattr(nn.Module, "__call__", lambda *args: kept(*args))
    with listening(lambda event, *_: heard.append(event)):
        nn.Linear(2, 1)(torch.ones(1, 2))
    assert heard == ["call_outside_module"]


def test_a_loss_module_that_cannot_be_hashed_runs_in_an_x_ray() -> None:
    @dataclass
    class Squares(nn.Module):
        scale: float = 2.0

        def __post_init__(self) -> None:
            super().__init__()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Module.__call__(self, x)  # type: ignore[no-any-return]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * x.square().mean()

    model = nn.Linear(2, 1)
    with Xray(model) as x:
        Squares()(model(torch.ones(4, 2))).backward()
    assert (x.record.backward_passes, x.record.notices) == (1, ())
