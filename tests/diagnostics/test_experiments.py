"""Experiments with a copy of a model leave no trace in the model, and find what outputs depend on."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from normscope.tracing import experiments
from normscope.tracing.experiments import Experiment


class Stateful(nn.Module):
    """Counts its calls, keeps its last output with its graph, draws random numbers, and has a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.calls = nn.Linear(4, 4), nn.BatchNorm1d(4), 0
        self.seen: list[int] = []
        self.last: Tensor | None = None
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(x))
        noise = torch.rand(1, generator=self.generator) + random.random() + torch.rand(1)
        self.last = F.dropout(self.norm(self.first(x)), 0.1) + noise
        print("a side effect")
        return self.last


def _state(model: Stateful) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), model.generator.get_state(), torch.get_rng_state()]
    return [*(tensor.tolist() for tensor in tensors), model.calls, list(model.seen), model.training, random.getstate()]


def test_an_experiment_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = Stateful(), torch.randn(8, 4)
    model(x)
    capsys.readouterr()
    before, last, hooks = _state(model), model.last, dict(model.first._forward_pre_hooks)
    experiment = Experiment(model, (x,), {})
    first = experiment.run()
    visited: list[str] = []
    second = experiment.run(visit=lambda name, *_: visited.append(name))
    assert torch.equal(first[0], second[0])  # each run starts from the same state
    assert visited == ["first", "norm", ""]
    assert not torch.equal(experiment.run(seed=1)[0], first[0])
    assert _state(model) == before
    assert model.last is last
    assert dict(model.first._forward_pre_hooks) == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert capsys.readouterr().out == ""


def test_a_copy_that_would_call_the_model_is_refused() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    layers = list(model)
    model.forward = lambda x: layers[1](layers[0](x))
    with pytest.raises(RuntimeError, match="calls the model"):
        Experiment(model, (torch.randn(8, 4),), {}).run()
    assert model[1].num_batches_tracked == 0


def test_an_x_ray_with_a_stateful_model_ends_as_without() -> None:
    states = []
    for watched in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        model, x = Stateful(), torch.randn(8, 4)
        with normscope.xray(model) if watched else torch.enable_grad():
            for _ in range(2):
                F.mse_loss(model(x), x).backward()
        states.append(_state(model))
    assert states[0] == states[1]


def test_a_model_that_cannot_run_again_has_no_dependence_and_no_notice() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.ran = nn.Linear(4, 4), False

        def forward(self, x: Tensor) -> Any:
            assert not self.ran
            self.ran = True
            return self.layer(x)

    with normscope.xray(Once()) as x:
        x._model(torch.randn(2, 4)).sum().backward()
    assert x.record.dependence == ()
    assert x.record.notices == ()


def test_leak_says_where_it_begins() -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True))
    tokens = torch.randint(11, (4, 9))

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.conv = model, nn.Conv1d(8, 11, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(self.body(x)[0].transpose(1, 2))
            return y

    head = Head()
    with normscope.xray(head) as x:
        F.cross_entropy(head(tokens[:, :-1]), tokens[:, 1:]).backward()
    (record,) = x.record.dependence
    assert record.next_token
    assert record.leak is not None
    assert (record.leak.module, record.leak.token, record.leak.earliest) == ("conv", 7, 6)


def test_a_large_model_that_writes_to_its_parameters_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy has the same memory, so that the experiment ends."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.writes = nn.Linear(4, 4), True

        def forward(self, x: Tensor) -> Any:
            if self.writes:
                self.layer.weight.data[0] += 1.0
            return self.layer(x)

    monkeypatch.setattr(experiments, "_MAX_COPIED_BYTES", 0)
    model, x = Writes(), torch.randn(8, 4)
    before = model.layer.weight.tolist()
    with pytest.raises(RuntimeError, match="would write to a parameter"):
        Experiment(model, (x,), {}).run()
    assert model.layer.weight.tolist() == before
    model.writes = False
    assert torch.equal(Experiment(model, (x,), {}).run()[0], model(x))
