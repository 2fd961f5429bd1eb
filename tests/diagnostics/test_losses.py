"""What an x-ray records about losses: arguments of loss functions, and the scalars that backward starts from."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record, save_record
from normscope.diagnostics.watchers.losses import objectives
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points

X, LABELS = points(0)


def trained(model: nn.Module, loss: Callable[[], Tensor], steps: int = 2, **options: Any) -> XrayRecord:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    with normscope.xray(model) as x, contextlib.suppress(RuntimeError):
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return x.record


def test_arguments_of_a_loss_function() -> None:
    model = nn.Sequential(mlp(16, 8, 4), nn.Softmax(dim=1))
    labels = LABELS.masked_fill(LABELS == 3, -100)
    record = trained(model, lambda: nn.CrossEntropyLoss(label_smoothing=0.25)(model(X), labels))
    (loss,) = record.loss_functions
    assert (loss.function, loss.calls, loss.classes, loss.label_smoothing) == ("cross_entropy", 2, 4, 0.25)
    assert (loss.origin_function, loss.origin_module, loss.source) == ("softmax", "1", "0.2")
    assert (loss.low, loss.high, loss.sums_to_one) == (0.0, 1.0, True)
    assert (loss.target_min, loss.target_max, loss.target_values) == (0.0, 2.0, 3)
    assert (loss.targets, loss.ignored) == (2 * int((LABELS < 3).sum()), 2 * int((LABELS == 3).sum()))
    assert loss.line is not None
    assert loss.line.startswith("test_losses.py:")


def test_terms_of_an_objective() -> None:
    model: Any = mlp(16, 8, 4)
    gain = nn.Parameter(torch.ones(()))

    def loss() -> Tensor:
        out = model(X)
        squares = ((out[:, 0] - X[:, 0]) ** 2).sum() / 10
        loss: Tensor = 0.5 * F.cross_entropy(out, LABELS) - squares + gain
        return loss

    (objective,) = trained(model, loss, momentum=0.5).objectives
    assert [(term.factor, term.is_sum, term.is_signed) for term in objective.terms] == [
        (0.5, False, False),
        (-0.1, True, False),
    ]
    assert (objective.is_complete, objective.batch) == (False, 64)  # the gain is no loss
    assert (objective.backward_passes, objective.steps, objective.optimizer) == (2, 2, "SGD")
    assert (objective.lr, objective.momentum, objective.adapts) == (0.01, 0.5, False)


def test_loss_curve_is_that_of_most_passes_and_without_the_scale_of_a_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "MAX_VALUES", 4)
    model: Any = mlp(16, 8, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    with normscope.xray(model) as x:
        model(X).square().mean().backward()
        for i in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), LABELS) * (math.nan if i == 5 else 1)
            seen.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert x.record.loss_curve[:4] == pytest.approx(seen[:4], rel=1e-6)
    assert len(x.record.loss_curve) == 5  # the first NaN is kept
    assert math.isnan(x.record.loss_curve[-1])
    assert XrayRecord("Net", (), batches=0, backward_passes=0).loss_curve == ()


def test_losses_survive_as_json(tmp_path: Any) -> None:
    model: Any = nn.Sequential(mlp(16, 8, 1), nn.ReLU())
    record = trained(model, lambda: F.l1_loss(model(X).squeeze(1), X[:, 0]))
    assert record.loss_functions[0].high == math.inf
    save_record(record, tmp_path / "xray.json")
    assert load_record(tmp_path / "xray.json") == record


def test_a_loss_that_raises_is_measured() -> None:
    model: Any = mlp(16, 8, 1)
    record = trained(model, lambda: F.binary_cross_entropy(model(X).squeeze(1), LABELS.float()))
    (loss,) = record.loss_functions
    assert (loss.target_max, record.notices) == (3.0, ())
    assert loss.input_min is not None
    assert loss.input_min < 0


def test_hand_written_losses_count_only_if_backward_starts_from_them() -> None:
    model: Any = mlp(16, 8, 1)

    def loss() -> Tensor:
        out = model(X)
        monitored = (out - X[:, 0]).abs().mean()  # broadcasts, but is only looked at
        assert monitored.requires_grad
        return F.mse_loss(out.squeeze(1), X[:, 0])

    with normscope.xray(model) as x:
        loss().backward()
    assert [found.function for found in x.record.loss_functions] == ["difference", "mse_loss"]
    assert x.findings == []


def test_evaluation_is_no_loss_function_call() -> None:
    model: Any = mlp(16, 8, 4)
    with torch.no_grad(), normscope.xray(model) as x:
        F.cross_entropy(model(X), LABELS)
    assert (len(x.record.losses), x.record.loss_functions) == (1, ())
    assert (x.record.losses[0].logits_source, x.record.losses[0].has_cosines) == ("2", False)


def test_scaled_cosines_may_lose_more_than_by_guessing() -> None:
    model: Any = mlp(16, 8, 8)
    weight = F.normalize(torch.randn(4, 8))
    with torch.no_grad(), normscope.xray(model) as x:
        F.cross_entropy(64 * (F.normalize(model(X)) @ weight.T), LABELS)
    (loss,) = x.record.losses
    assert loss.has_cosines
    assert loss.value > math.log(4) + 4
    assert x.findings == []


def test_a_module_with_as_many_outputs_as_classes_is_not_to_blame() -> None:
    model: Any = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 8))
    with normscope.xray(model) as x:
        F.cross_entropy(100 * model(X)[:, :4].sum(1, keepdim=True).expand(-1, 4).cumsum(1), LABELS)
    assert [(found.name, found.module) for found in x.findings] == [("loss-above-chance", "")]


def test_arithmetic_of_optimizers_is_not_watched() -> None:
    model: Any = mlp(16, 8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X).squeeze(1), X[:, 0])
        loss.backward()
        return loss

    with normscope.xray(model) as x:
        optimizer.step(closure)
    assert [loss.function for loss in x.record.loss_functions] == ["mse_loss"]
    assert len(x.record.loss_curve) == x.record.loss_functions[0].calls > 1
