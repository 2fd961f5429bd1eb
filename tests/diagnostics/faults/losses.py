"""Probabilities passed as logits, and empty batches."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Setup, fault, two_training_steps
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next


@fault("probabilities-as-logits", "5")
def classifier_ending_in_softmax() -> Setup:
    model: Any = nn.Sequential(*mlp(16, 64, 64, 4), nn.Softmax(dim=-1))
    return two_training_steps(model, classify(model))


@fault("probabilities-as-logits", "1")
def convnet_ending_in_sigmoid() -> Setup:
    model: Any = nn.Sequential(convnet(), nn.Sigmoid())
    return two_training_steps(model, classify(model, images))


class ProbabilityDecoder(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).softmax(-1)


@fault("probabilities-as-logits", "")
def decoder_returning_probabilities() -> Setup:
    """The loss gets them flattened."""
    model: Any = ProbabilityDecoder(depth=2)
    return two_training_steps(model, predict_next(model))


@fault("probabilities-as-logits", "")
def softmax_before_loss() -> Setup:
    model: Any = mlp(16, 64, 4)

    def batch(number: int) -> Objective:
        x, labels = points(number)
        return lambda: F.cross_entropy(F.softmax(model(x), dim=-1)[:32], labels[:32])

    return two_training_steps(model, batch)


@fault("probabilities-as-logits", "3", note=True)
def log_softmax_applied_twice() -> Setup:
    """Harmless: applying log_softmax twice gives the same loss."""
    model: Any = nn.Sequential(*mlp(16, 64, 4), nn.LogSoftmax(dim=-1))
    return two_training_steps(model, classify(model))


@fault("empty-batch", "")
def empty_batch_of_rows() -> Setup:
    model: Any = mlp(16, 64, 4)
    return model, lambda: model(torch.randn(8, 16)[:0]).square().sum().backward()


@fault("empty-batch", "")
def empty_batch_of_images() -> Setup:
    model: Any = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    return model, lambda: model(torch.randn(0, 1, 8, 8)).sum().backward()
