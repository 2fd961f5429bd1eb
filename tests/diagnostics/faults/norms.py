"""Norms: eps, running statistics, bias before a norm, outlier features."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Setup, adamw, fault, run_steps, two_training_steps
from tests.diagnostics.healthy.huggingface import llama
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next, texts


class CustomRMSNorm(nn.Module):
    """A hand-written RMSNorm that computes in the dtype of its input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


@fault("eps-too-small", "norm")
def eps_zero() -> Setup:
    model: Any = Decoder(depth=2)
    model.norm = CustomRMSNorm(32, 0.0)
    return two_training_steps(model, predict_next(model))


@fault("eps-too-small", "blocks.0.norm1")
def eps_underflows_in_float16() -> Setup:
    model: Any = Decoder(depth=2).half()
    model.blocks[0].norm1 = CustomRMSNorm(32, 1e-8).half()

    def run() -> None:
        with torch.no_grad():
            model(texts(0)[0])

    return model, run


@fault("eps-too-large", "blocks.0.norm1")
def eps_above_embedding_variance() -> Setup:
    model: Any = Decoder(depth=2)
    nn.init.normal_(model.tokens.weight, std=0.005)
    nn.init.normal_(model.positions.weight, std=0.005)
    model.blocks[0].norm1 = nn.LayerNorm(32, eps=1e-2)
    return two_training_steps(model, predict_next(model))


@fault("eps-too-large", "model.layers.0.input_layernorm", ["eps-too-large"], needs="transformers")
def llama_eps_of_one() -> Setup:
    """In all norms; the residual stream is small at each of them."""
    model: Any = llama(rms_norm_eps=1.0)
    return two_training_steps(model, predict_next(model))


@fault("stale-running-statistics", "1", ["stale-running-statistics"])
def eval_on_unscaled_data() -> Setup:
    """The first norm gets inputs ten times larger; later norms are affected too."""
    model: Any = convnet()
    two_training_steps(model, classify(model, images), after=40)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900, count=64)[0] * 10 + 5)

    return model, run


def _eval_after_training(change: Callable[[Tensor], Tensor]) -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    two_training_steps(model, classify(model), after=40)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(change(points(900)[0]))

    return model, run


@fault("stale-running-statistics", "1")
def eval_on_shifted_data() -> Setup:
    return _eval_after_training(lambda x: x + 5.0)


@fault("stale-running-statistics", "1")
def eval_on_data_with_larger_variance() -> Setup:
    return _eval_after_training(lambda x: x.mean(0) + 4 * (x - x.mean(0)))


@fault("stale-running-statistics", "1")
def batchnorm_momentum_too_small() -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32, momentum=1e-5), nn.ReLU(), nn.Linear(32, 4))
    nn.init.normal_(model[0].weight, std=1.0)
    return two_training_steps(model, classify(model), after=60)


@fault("bias-before-norm", "3", note=True)
def conv_bias_before_batchnorm() -> Setup:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    return two_training_steps(model, classify(model, images))


@fault("bias-before-norm", "0", note=True)
def linear_bias_before_normscope_batchnorm() -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32), normscope.BatchNorm("[n] c", c=32), nn.ReLU(), nn.Linear(32, 4))
    return two_training_steps(model, classify(model))


@fault("outlier-features", "blocks.1.feed.up", note=True)
def one_large_norm_weight() -> Setup:
    model: Any = Decoder(depth=3)
    with torch.no_grad():
        model.blocks[1].norm2.weight[7] = 300.0
        model.blocks[1].feed.up.weight[:, 7] /= 300.0
    return two_training_steps(model, predict_next(model))


@fault("outlier-features", "0", note=True)
def input_column_in_millimeters() -> Setup:
    """One column is in millimeters, the others in meters."""
    model: Any = mlp(16, 64, 64, 4)

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, labels = points(number)
        return x * torch.tensor([1000.0] + [1.0] * 15), labels

    with torch.no_grad():
        model[0].weight[:, 0] /= 1000.0
    return two_training_steps(model, classify(model, data))


@fault("stale-running-statistics", "1")
def momentum_as_in_other_frameworks() -> Setup:
    """0.99 is the weight of the new batch."""
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32, momentum=0.99), nn.ReLU(), nn.Linear(32, 4))
    return model, lambda: run_steps((classify(model)(i) for i in range(6)), adamw(model))


@fault("abnormal-gain", "1")
def norm_weight_of_fifty() -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    nn.init.constant_(model[1].weight, 50.0)
    nn.init.normal_(model[3].weight, std=1e-3)
    return two_training_steps(model, classify(model))
