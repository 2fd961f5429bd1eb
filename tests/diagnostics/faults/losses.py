"""Losses that are given what they should not be, and batches with nothing in them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Scene, fault, running
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict


@fault("probabilities-as-logits", "5")
def classifier_that_ends_in_a_softmax() -> Scene:
    model: Any = nn.Sequential(*mlp(16, 64, 64, 4), nn.Softmax(dim=-1))
    return running(model, classify(model))


@fault("probabilities-as-logits", "1")
def convnet_that_ends_in_a_sigmoid() -> Scene:
    model: Any = nn.Sequential(convnet(), nn.Sigmoid())
    return running(model, classify(model, images))


class Sure(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).softmax(-1)


@fault("probabilities-as-logits", "")
def decoder_that_gives_probabilities() -> Scene:
    """The loss sees them flattened."""
    model: Any = Sure(depth=2)
    return running(model, predict(model))


@fault("probabilities-as-logits", "")
def softmax_between_the_model_and_its_loss() -> Scene:
    model: Any = mlp(16, 64, 4)

    def batch(number: int) -> Objective:
        x, labels = points(number)
        return lambda: F.cross_entropy(F.softmax(model(x), dim=-1)[:32], labels[:32])

    return running(model, batch)


@fault("probabilities-as-logits", "3", note=True)
def log_softmax_that_the_loss_takes_again() -> Scene:
    """The same loss: it is done twice."""
    model: Any = nn.Sequential(*mlp(16, 64, 4), nn.LogSoftmax(dim=-1))
    return running(model, classify(model))


@fault("empty-batch", "")
def filter_that_leaves_no_row() -> Scene:
    model: Any = mlp(16, 64, 4)
    return model, lambda: model(torch.randn(8, 16)[:0]).square().sum().backward()


@fault("empty-batch", "")
def images_of_which_none_is_left() -> Scene:
    model: Any = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    return model, lambda: model(torch.randn(0, 1, 8, 8)).sum().backward()
