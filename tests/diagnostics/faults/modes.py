"""Steps in eval mode, evaluation in training mode, and dropout that ignores the mode."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, fault, run_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, images, points


def with_dropout() -> Any:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))


def with_batch_norm() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def evaluate(model: Any, batches: Any, count: int = 3) -> None:
    with torch.no_grad():
        for number in range(count):
            batches(100 + number)()


@fault("trained-in-eval-mode", "")
def train_never_called() -> Setup:
    model = with_dropout().eval()
    optimizer = adamw(model)
    return model, lambda: run_steps((classify(model)(i) for i in range(6)), optimizer)


@fault("trained-in-eval-mode", "")
def eval_mode_stays_on() -> Setup:
    model = with_batch_norm()
    optimizer, batches = adamw(model), classify(model, images)

    def run() -> None:
        for _ in range(3):
            run_steps((batches(i) for i in range(4)), optimizer)
            model.eval()
            evaluate(model, batches)

    return model, run


@fault("evaluated-in-train-mode", "")
def evaluation_with_dropout() -> Setup:
    model = with_dropout()
    optimizer, batches = adamw(model), classify(model)

    def run() -> None:
        for _ in range(2):
            run_steps((batches(i) for i in range(4)), optimizer)
            evaluate(model, batches)

    return model, run


@fault("evaluated-in-train-mode", "")
def evaluation_with_batch_norm() -> Setup:
    model = with_batch_norm()
    optimizer, batches = adamw(model), classify(model, images)

    def run() -> None:
        run_steps((batches(i) for i in range(4)), optimizer)
        evaluate(model, batches)

    return model, run


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(F.dropout(F.relu(self.first(x)), 0.2))
        return y


def _evaluated(model: Any) -> Setup:
    def run() -> None:
        run_steps((classify(model)(i) for i in range(3)), adamw(model))
        model.eval()
        evaluate(model, classify(model))

    return model, run


@fault("dropout-in-eval-mode", "")
def dropout_without_training() -> Setup:
    return _evaluated(FunctionalDropout())


class HiddenDropout(nn.Module):
    """The list hides the dropout from eval()."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
        self.drops = [nn.Dropout(0.2)]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.drops[0](F.relu(self.first(x))))
        return y


@fault("dropout-in-eval-mode", "")
def dropout_in_a_list() -> Setup:
    return _evaluated(HiddenDropout())


class AttentionDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.last = nn.Linear(4, 12), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(-1, 1, 4, 4)).chunk(3, dim=-1)
        y: Tensor = self.last(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).flatten(1))
        return y


@fault("dropout-in-eval-mode", "")
def attention_dropout_without_training() -> Setup:
    return _evaluated(AttentionDropout())


class Distiller(nn.Module):
    def __init__(self, teacher: Any) -> None:
        super().__init__()
        self.student, self.teacher = mlp(16, 32, 4), teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher(x)
        return F.mse_loss(self.student(x), wanted)


@fault("teacher-in-train-mode", "teacher")
def teacher_with_dropout() -> Setup:
    model: Any = Distiller(with_dropout())
    optimizer = torch.optim.AdamW(model.student.parameters(), lr=1e-3)
    return model, lambda: run_steps([lambda i=i: model(points(i)[0]) for i in range(10)], optimizer)  # type: ignore[misc]


@fault("teacher-in-train-mode", "")
def teacher_outside_of_the_model() -> Setup:
    model: Any = mlp(16, 32, 4)
    teacher, optimizer = with_dropout(), adamw(model)

    def objective(number: int) -> Tensor:
        x = points(number)[0]
        with torch.no_grad():
            wanted = teacher(x)
        return F.mse_loss(model(x), wanted)

    return model, lambda: run_steps([lambda i=i: objective(i) for i in range(10)], optimizer)  # type: ignore[misc]


@fault("evaluated-in-train-mode", "")
def evaluation_with_gradients() -> Setup:
    """Neither eval() nor no_grad()."""
    model = with_dropout()
    optimizer, batches = adamw(model), classify(model)

    def run() -> None:
        for _ in range(3):
            run_steps((batches(i) for i in range(4)), optimizer)
            total = 0.0
            for number in range(4):
                loss = batches(100 + number)()
                total += loss.item()

    return model, run
