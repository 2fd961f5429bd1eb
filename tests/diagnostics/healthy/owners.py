"""Weights that are used in unusual ways and are the model's all the same, or are meant to be hidden from it; gradients
that are emptied in unusual ways."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from tests.diagnostics.cases import Scene, adam, running, steps, well
from tests.diagnostics.networks import convnet, mlp
from tests.diagnostics.tasks import classify, images, points


@well((0, 1))
def weights_lent_for_a_call(seed: int) -> Scene:
    """Fast weights, as of meta-learning: leaves that the model has for this call only."""
    model: Any = mlp(16, 64, 4)
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    x, labels = points(seed)
    return model, lambda: F.cross_entropy(functional_call(model, fast, (x,)), labels).backward()


class LowRank(nn.Module):
    """A frozen layer and a product of two small weights beside it (Hu et al. 2021, LoRA)."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) + x @ self.down.T @ self.up.T
        return y


@well((0, 1))
def low_rank_beside_frozen_layers(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    for i in (0, 2):
        model[i] = LowRank(model[i])
    return running(model, classify(model), trained=20 * seed)


class Closures(nn.Module):
    """Calls of layers, and of a tied weight, in a plain list."""

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


@well((0, 1))
def calls_of_its_own_layers_in_a_list(seed: int) -> Scene:
    model: Any = Closures()
    return running(model, classify(model), trained=10 * seed)


@well((0, 1))
def weights_that_are_made_of_others(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    return running(model, classify(model), trained=10 * seed)


class Hidden(nn.Module):
    """Its teacher is in a list, so that it is neither trained nor saved."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(16, 32, 4), [mlp(16, 64, 4)]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher[0](x)
        return self.student(x), wanted


@well((0, 1))
def teacher_that_is_hidden_from_the_model(seed: int) -> Scene:
    model: Any = Hidden()
    return running(model, lambda i: lambda: F.mse_loss(*model(points(i)[0])), trained=10 * seed)


class Borrowing(nn.Module):
    """Reads with the table of another model."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.inner, self.other = mlp(16, 32, 16), [other]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.other[0](self.inner(x))
        return y


@well((0, 1))
def head_of_another_model_that_the_optimiser_has(seed: int) -> Scene:
    head = nn.Linear(16, 4)
    model: Any = Borrowing(head)
    optimiser = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    return model, lambda: steps((classify(model)(seed + i) for i in range(2)), optimiser)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(16, 32, 16)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y: Tensor = self.inner(x) @ other
        return y


@well((0, 1))
def input_that_asks_for_a_gradient(seed: int) -> Scene:
    """As for adversarial examples."""
    model: Any = Bilinear()
    x, labels = points(seed)
    classes = torch.randn(16, 4).mul(0.1).requires_grad_()
    return model, lambda: F.cross_entropy(model(x.requires_grad_(), classes), labels).backward()


@well((0, 1))
def gradients_emptied_in_place_after_many_batches(seed: int) -> Scene:
    """Two batches for each step, clipped; emptied by hand, as people did before there was zero_grad."""
    model: Any = mlp(16, 64, 4)
    optimiser = adam(model)

    def run() -> None:
        for number in range(4):
            for part in range(2):
                (classify(model)(2 * number + part)() / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimiser.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.data.zero_() if seed else parameter.grad.zero_()

    return model, run


@well((0, 1))
def line_search(seed: int) -> Scene:
    """A step of LBFGS is twenty, as long as it finds them good."""
    model: Any = mlp(16, 32, 4)
    optimiser = torch.optim.LBFGS(model.parameters(), line_search_fn=None if seed else "strong_wolfe")
    x, labels = points(seed)

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = F.cross_entropy(model(x), labels) + 1e-2 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(2):
            optimiser.step(objective)

    return model, run


@well((0, 1))
def pixels_from_0_to_255_before_a_norm(seed: int) -> Scene:
    """Its first norm takes their size away."""
    model: Any = nn.Sequential(nn.BatchNorm2d(1), *convnet())
    pictures, labels = images(seed)
    pixels = (pictures - pictures.min()) / (pictures.max() - pictures.min()) * 255
    return model, lambda: steps([lambda: F.cross_entropy(model(pixels), labels)] * 2, adam(model))
