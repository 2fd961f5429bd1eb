"""Unusual but correct training code: borrowed or hidden weights, LoRA, parametrizations, manual zeroing, LBFGS."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from tests.diagnostics.cases import Setup, adamw, healthy, run_steps, train, two_training_steps
from tests.diagnostics.networks import convnet, mlp
from tests.diagnostics.tasks import classify, images, points


@healthy((0, 1))
def functional_call_with_fast_weights(seed: int) -> Setup:
    """Fast weights as in meta-learning: leaf tensors that the model uses for one call only."""
    model: Any = mlp(16, 64, 4)
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    x, labels = points(seed)
    return model, lambda: F.cross_entropy(functional_call(model, fast, (x,)), labels).backward()


class LoRALinear(nn.Module):
    """A frozen layer plus a low-rank update (Hu et al. 2021, LoRA)."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) + x @ self.down.T @ self.up.T
        return y


@healthy((0, 1))
def lora(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    for i in (0, 2):
        model[i] = LoRALinear(model[i])
    return two_training_steps(model, classify(model), after=20 * seed)


class Closures(nn.Module):
    """Calls of registered layers, and of a tied weight, in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.calls: list[Any] = [
            lambda x: F.relu(self.first(x)),
            self.second,
            F.relu,
            lambda x: F.linear(x, self.second.weight),
        ]

    def forward(self, x: Tensor) -> Tensor:
        for call in self.calls:
            x = call(x)
        y: Tensor = self.last(x)
        return y


@healthy((0, 1))
def own_layers_called_from_list(seed: int) -> Setup:
    model: Any = Closures()
    return two_training_steps(model, classify(model), after=10 * seed)


@healthy((0, 1))
def weight_norm_and_spectral_norm(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    return two_training_steps(model, classify(model), after=10 * seed)


class HiddenTeacher(nn.Module):
    """The teacher is in a list, so that it is neither trained nor saved."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(16, 32, 4), [mlp(16, 64, 4)]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = self.teacher[0](x)
        return self.student(x), target


@healthy((0, 1))
def teacher_in_python_list(seed: int) -> Setup:
    model: Any = HiddenTeacher()
    return two_training_steps(model, lambda i: lambda: F.mse_loss(*model(points(i)[0])), after=10 * seed)


class BorrowedHead(nn.Module):
    """Uses the head of another model."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.inner, self.other = mlp(16, 32, 16), [other]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.other[0](self.inner(x))
        return y


@healthy((0, 1))
def borrowed_head_in_optimizer(seed: int) -> Setup:
    head = nn.Linear(16, 4)
    model: Any = BorrowedHead(head)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    return model, lambda: run_steps((classify(model)(seed + i) for i in range(2)), optimizer)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(16, 32, 16)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y: Tensor = self.inner(x) @ other
        return y


@healthy((0, 1))
def input_requires_grad(seed: int) -> Setup:
    """As in adversarial training."""
    model: Any = Bilinear()
    x, labels = points(seed)
    classes = torch.randn(16, 4).mul(0.1).requires_grad_()
    return model, lambda: F.cross_entropy(model(x.requires_grad_(), classes), labels).backward()


@healthy((0, 1))
def grads_zeroed_in_place_with_accumulation(seed: int) -> Setup:
    """Two clipped batches per step; gradients are zeroed by hand instead of with zero_grad."""
    model: Any = mlp(16, 64, 4)
    optimizer = adamw(model)

    def run() -> None:
        for number in range(4):
            for part in range(2):
                (classify(model)(2 * number + part)() / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.data.zero_() if seed else parameter.grad.zero_()

    return model, run


@healthy((0, 1))
def lbfgs(seed: int) -> Setup:
    """One LBFGS step evaluates the closure up to twenty times."""
    model: Any = mlp(16, 32, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn=None if seed else "strong_wolfe")
    x, labels = points(seed)

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = F.cross_entropy(model(x), labels) + 1e-2 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(2):
            optimizer.step(objective)

    return model, run


@healthy((0, 1))
def raw_pixels_before_norm(seed: int) -> Setup:
    """The first norm removes the scale."""
    model: Any = nn.Sequential(nn.BatchNorm2d(1), *convnet())
    x, labels = images(seed)
    pixels = (x - x.min()) / (x.max() - x.min()) * 255
    return model, lambda: run_steps([lambda: F.cross_entropy(model(pixels), labels)] * 2, adamw(model))


@healthy()
def positive_before_a_queue_of_negatives(seed: int) -> Setup:
    """As in MoCo: the right class is always the first, since it is the similarity to the positive."""

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = mlp(16, 32, 8)
            self.register_buffer("queue", F.normalize(torch.randn(8, 64), dim=0))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            query = F.normalize(self.encoder(a), dim=1)
            with torch.no_grad():
                key = F.normalize(self.encoder(b), dim=1)
            return torch.cat([(query * key).sum(1, keepdim=True), query @ self.get_buffer("queue")], 1) / 0.1

    model: Any = Contrast()

    def loss(i: int) -> Tensor:
        x, _ = points(seed + i)
        logits = model(x + 0.1 * torch.randn_like(x), x)
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    return train(model, loss)


@healthy()
def norm_without_weights_between_two_views(seed: int) -> Setup:
    """As in Barlow Twins: a batch norm that has nothing to train is no teacher."""
    model: Any = nn.ModuleDict({"encoder": mlp(16, 32, 8), "norm": nn.BatchNorm1d(8, affine=False)})

    def loss(i: int) -> Tensor:
        x, _ = points(seed + i)
        a, b = (model["norm"](model["encoder"](x + 0.1 * torch.randn_like(x))) for _ in range(2))
        loss: Tensor = (a.T @ b / len(x) - torch.eye(8)).square().mean()
        return loss

    return train(model, loss, steps=12)


@healthy()
def large_first_steps_of_adagrad(seed: int) -> Setup:
    """Its first step changes each weight by the whole learning rate; later ones are smaller, and the loss falls."""
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(seed + i)
        return F.cross_entropy(model(x), labels)

    return train(model, loss, steps=6, optimizer=torch.optim.Adagrad(model.parameters(), lr=0.1))


@healthy()
def episodes_sorted_by_class(seed: int) -> Setup:
    """Each batch of few-shot learning has all classes, in order."""
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(seed + i)
        order = labels.argsort()
        return F.cross_entropy(model(x[order]), labels[order])

    return train(model, loss, steps=8)


@healthy()
def likelihood_of_narrow_data(seed: int) -> Setup:
    """Its negative falls far below zero, as densities may be large, but at a steady pace."""
    model: Any = mlp(16, 32, 2)

    def loss(i: int) -> Tensor:
        mean, log_std = model(points(seed + i)[0]).chunk(2, 1)
        loss: Tensor = (log_std + 0.5 * ((0.001 - mean) / log_std.exp()).square()).sum()
        return loss

    return train(model, loss, steps=40)
