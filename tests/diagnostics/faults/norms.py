"""eps, running statistics, biases before norms, outliers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.foreign import llama
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict, texts


class OwnNorm(nn.Module):
    """RMSNorm as people write it, in the type of its input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


@fault("eps-too-small", "norm")
def eps_of_zero() -> Scene:
    model: Any = Decoder(depth=2)
    model.norm = OwnNorm(32, 0.0)
    return running(model, predict(model))


@fault("eps-too-small", "blocks.0.norm1")
def eps_that_rounds_away_in_half_precision() -> Scene:
    model: Any = Decoder(depth=2).half()
    model.blocks[0].norm1 = OwnNorm(32, 1e-8).half()

    def run() -> None:
        with torch.no_grad():
            model(texts(0)[0])

    return model, run


@fault("eps-too-large", "blocks.0.norm1")
def eps_far_above_small_embeddings() -> Scene:
    model: Any = Decoder(depth=2)
    nn.init.normal_(model.tokens.weight, std=0.005)
    nn.init.normal_(model.places.weight, std=0.005)
    model.blocks[0].norm1 = nn.LayerNorm(32, eps=1e-2)
    return running(model, predict(model))


@fault("eps-too-large", "model.layers.0.input_layernorm", ["eps-too-large"], needs="transformers")
def llama_with_an_eps_of_one() -> Scene:
    """Of all its norms; the stream is small before each."""
    model: Any = llama(rms_norm_eps=1.0)
    return running(model, predict(model))


@fault("stale-running-statistics", "1", ["stale-running-statistics"])
def eval_on_data_that_was_not_scaled() -> Scene:
    """The first norm sees ten times the size; what comes after it does so too."""
    model: Any = convnet()
    running(model, classify(model, images), trained=40)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900, count=64)[0] * 10 + 5)

    return model, run


def _eval_after_training(change: Callable[[Tensor], Tensor]) -> Scene:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    running(model, classify(model), trained=40)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(change(points(900)[0]))

    return model, run


@fault("stale-running-statistics", "1")
def eval_on_data_that_was_not_centred() -> Scene:
    return _eval_after_training(lambda x: x + 5.0)


@fault("stale-running-statistics", "1")
def eval_on_data_that_varies_more() -> Scene:
    return _eval_after_training(lambda x: x.mean(0) + 4 * (x - x.mean(0)))


@fault("stale-running-statistics", "1")
def momentum_that_never_learns() -> Scene:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32, momentum=1e-5), nn.ReLU(), nn.Linear(32, 4))
    nn.init.normal_(model[0].weight, std=1.0)
    return running(model, classify(model), trained=60)


@fault("bias-before-norm", "3", note=True)
def convolution_with_a_bias_before_batch_norm() -> Scene:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    return running(model, classify(model, images))


@fault("bias-before-norm", "0", note=True)
def linear_with_a_bias_before_our_batch_norm() -> Scene:
    model: Any = nn.Sequential(nn.Linear(16, 32), normscope.BatchNorm("[n] c", c=32), nn.ReLU(), nn.Linear(32, 4))
    return running(model, classify(model))


@fault("outlier-features", "blocks.1.feed.up", note=True)
def gain_of_one_feature_a_thousand() -> Scene:
    model: Any = Decoder(depth=3)
    with torch.no_grad():
        model.blocks[1].norm2.weight[7] = 300.0
        model.blocks[1].feed.up.weight[:, 7] /= 300.0
    return running(model, predict(model))


@fault("outlier-features", "0", note=True)
def column_in_other_units() -> Scene:
    """One column is in millimetres where the others are in metres."""
    model: Any = mlp(16, 64, 64, 4)

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, labels = points(number)
        return x * torch.tensor([1000.0] + [1.0] * 15), labels

    with torch.no_grad():
        model[0].weight[:, 0] /= 1000.0
    return running(model, classify(model, data))
