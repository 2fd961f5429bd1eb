"""Scalars that backward starts from: wrong sign, wrong scale, or without a connection to the model."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, train
from tests.diagnostics.networks import Decoder, mlp
from tests.diagnostics.tasks import points, texts


def _sgd(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


@fault("graph-cut", "")
def loss_of_item() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return torch.tensor(F.cross_entropy(model(x), labels).item(), requires_grad=True)

    return train(model, loss)


@fault("graph-cut", "")
def loss_of_predicted_classes() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        predictions = model(x).argmax(1).float().requires_grad_()
        return F.mse_loss(predictions, labels.float())

    return train(model, loss)


@fault("loss-maximized", "")
def negative_cross_entropy() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return -F.cross_entropy(model(x), labels)

    return train(model, loss)


@fault("loss-maximized", "")
def likelihood_by_one_hot_labels() -> Setup:
    model: Any = Decoder(depth=2)

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        loss: Tensor = (F.one_hot(y, 16) * model(x).log_softmax(-1)).sum(-1).mean()
        return loss

    return train(model, loss)


@fault("loss-maximized", "")
def optimizer_maximizes_squares() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        loss: Tensor = (model(x).squeeze(1) - labels).square().mean()
        return loss

    return train(model, loss, optimizer=_sgd(model, 1e-3, maximize=True))


class Ascent(torch.optim.Optimizer):
    """Adds the gradient, rather than subtracting it."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(model.parameters(), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter += group["lr"] * parameter.grad


@fault("loss-rises", "", ["loss-above-chance", "exploded-weights", "update-too-large"])
def update_with_wrong_sign() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels)

    return train(model, loss, steps=20, optimizer=Ascent(model, 0.05))


@fault("loss-rises", "", ["loss-above-chance", "exploded-weights", "update-too-large"])
def update_of_binary_loss_with_wrong_sign() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), (labels > 1).float())

    return train(model, loss, steps=20, optimizer=Ascent(model, 0.1))


@fault("negative-loss", "")
def mean_of_signed_errors() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        loss: Tensor = (model(x).squeeze(1) - labels).mean()
        return loss

    return train(model, loss)


@fault("negative-loss", "")
def negative_class_weights() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels, weight=torch.tensor([-5.0, 2.0, 1.0, 3.0]))

    return train(model, loss)


@fault("summed-loss", "", ["update-too-large", "loss-above-chance", "exploded-weights", "dead-units"])
def summed_cross_entropy() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels, reduction="sum")

    return train(model, loss, optimizer=_sgd(model, 0.01, momentum=0.9))


@fault("summed-loss", "", ["update-too-large", "exploded-weights", "dead-units", "non-finite-output"])
def hand_written_sum_of_squares() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return torch.sum((labels - model(x).squeeze(1)) ** 2)

    return train(model, loss, steps=3, optimizer=_sgd(model, 0.01))


@fault("loss-scaled", "", ["zero-gradient"])
def loss_times_zero() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return 0.0 * F.cross_entropy(model(x), labels)

    return train(model, loss)


@fault("loss-scaled", "", ["weights-unchanged", "update-too-small"])
def mean_divided_by_number_of_samples() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels) / 4096

    return train(model, loss, optimizer=_sgd(model, 0.1))


class Straight(torch.autograd.Function):
    """Ones, whatever the input is, with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


@fault("constant-loss", "")
def loss_of_constant_outputs() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        return Straight.apply(model(x)).square().mean()  # type: ignore[no-untyped-call,no-any-return]

    return train(model, loss)


@fault("constant-loss", "")
def loss_of_rounded_outputs() -> Setup:
    """The straight-through estimator passes gradients, but zeros are all that comes out."""
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        y = model(x)
        hard = (y + (torch.zeros_like(y) - y).detach()) * 0.5
        loss: Tensor = (hard - 1.0).square().mean().round(decimals=3)
        return loss

    return train(model, loss)


@fault("negative-loss", "")
def divergence_with_the_wrong_sign() -> Setup:
    """The term of the log-variances of a VAE has no minimum with a plus."""
    model: Any = nn.ModuleDict({"encoder": mlp(16, 32, 8), "decoder": mlp(4, 32, 16)})

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        mean, log_variance = model["encoder"](x).chunk(2, 1)
        output = model["decoder"](mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        loss: Tensor = F.mse_loss(output, x) - divergence
        return loss

    return train(model, loss, steps=52, optimizer=torch.optim.Adam(model.parameters(), lr=5e-3))


@fault("negative-loss", "")
def pairs_pushed_apart_without_a_margin() -> Setup:
    model: Any = mlp(16, 64, 8)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        distances = (model(x) - model(x.flip(0))).square().sum(1)
        return torch.where(labels == labels.flip(0), distances, -distances).mean()

    return train(model, loss, steps=60, optimizer=torch.optim.Adam(model.parameters(), lr=0.02))
