"""Losses that get another kind of input than they expect, or one that cannot reach the targets."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, train
from tests.diagnostics.networks import convnet, mlp
from tests.diagnostics.tasks import images, points


@fault("probabilities-as-logits", "")
def own_softmax_before_loss() -> Setup:
    """exp(x) over its sum, so that only the values show what it is."""
    model: Any = mlp(16, 64, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        scores = model(x).exp()
        return F.cross_entropy(scores / scores.sum(1, keepdim=True), labels)

    return train(model, loss)


@fault("probabilities-as-logits", "1")
def sigmoid_before_binary_cross_entropy_with_logits() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), (labels > 1).float(), reduction="none").mean()

    return train(model, loss)


@fault("probabilities-as-logits", "1")
def log_softmax_of_softmax() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 4), nn.Softmax(dim=1))

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.nll_loss(F.log_softmax(model(x), dim=1), labels)

    return train(model, loss)


@fault("logits-as-probabilities", "")
def softmax_before_nll_loss() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 4), nn.Softmax(dim=1))

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.nll_loss(model(x), labels)

    return train(model, loss)


@fault("logits-as-probabilities", "")
def kl_divergence_of_logits() -> Setup:
    model, teacher = mlp(16, 32, 4), mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        return F.kl_div(model(x), teacher(x).softmax(1).detach(), reduction="batchmean")

    return train(model, loss)


@fault("logits-as-probabilities", "")
def clamp_instead_of_sigmoid() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy(model(x).squeeze(1).clamp(0, 1), (labels > 1).float())

    return train(model, loss)


@fault("softmax-over-batch", "1")
def log_softmax_over_samples() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 4), nn.LogSoftmax(dim=0))

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.nll_loss(model(x), labels)

    return train(model, loss)


@fault("softmax-over-batch", "")
def softmax_over_samples_in_distillation() -> Setup:
    model, teacher = mlp(16, 32, 4), mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        return F.kl_div(F.log_softmax(model(x), 0), teacher(x).softmax(1).detach(), reduction="batchmean")

    return train(model, loss)


@fault("softmax-over-one-output", "", ["zero-gradient"])
def cross_entropy_of_one_output() -> Setup:
    """The gradients are zero too."""
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), torch.zeros_like(labels))

    return train(model, loss)


@fault("softmax-over-one-output", "1", ["zero-gradient", "output-out-of-reach"])
def softmax_of_one_output() -> Setup:
    """A binary classifier whose probability is always 1."""
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Softmax(dim=1))

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.mse_loss(model(x).squeeze(1), (labels > 1).float())

    return train(model, loss)


@fault("output-out-of-reach", "1")
def relu_before_cross_entropy() -> Setup:
    model: Any = nn.Sequential(convnet(), nn.ReLU())

    def loss(i: int) -> Tensor:
        x, labels = images(i)
        return F.cross_entropy(model(x), labels)

    return train(model, loss)


@fault("output-out-of-reach", "1")
def tanh_before_cross_entropy() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 4), nn.Tanh())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels)

    return train(model, loss)


@fault("output-out-of-reach", "1")
def sigmoid_against_pixels_up_to_255() -> Setup:
    model: Any = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, _ = images(i)
        pixels = (255 * x.clamp(0, 1)).round()
        loss: Tensor = ((model(x) - pixels) ** 2).mean()
        return loss

    return train(model, loss)


@fault("output-out-of-reach", "1")
def relu_before_binary_cross_entropy_with_logits() -> Setup:
    """No probability is below 0.5."""
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.ReLU())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), (labels > 1).float())

    return train(model, loss)


@fault("output-out-of-reach", "2")
def relu_before_sigmoid() -> Setup:
    """No probability is below 0.5."""
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.ReLU(), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy(model(x), (labels > 1).float()[:, None])

    return train(model, loss)
