"""Norms over the wrong values: too few, padding, future tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.healthy.gpts import gpt
from tests.diagnostics.networks import Decoder, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next


@fault("norm-over-few-values", "1")
def batchnorm_batch_size_1() -> Setup:
    """torch raises an error for it."""
    model: Any = mlp(16, 32, 4, norm=nn.BatchNorm1d)
    return two_training_steps(model, classify(model, lambda i: points(i, count=1)))


@fault("norm-over-few-values", "4")
def batchnorm_batch_size_2_on_1x1_maps() -> Setup:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 6, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return two_training_steps(model, classify(model, lambda i: images(i, count=2)))


@fault("norm-over-few-values", "1", ["norm-over-few-values"])
def batchnorm_batch_size_4() -> Setup:
    model: Any = mlp(16, 32, 32, 4, norm=nn.BatchNorm1d)
    return two_training_steps(model, classify(model, lambda i: points(i, count=4)))


@fault("norm-over-few-values", "1", ["zero-gradient"])
def groupnorm_one_value_per_group() -> Setup:
    """As many groups as channels, on vectors: each value is its own mean, so only the bias remains.

    The bias is not zero, since x - mean(x) is either zero or a rounding error, depending on the kernel.
    """
    model: Any = mlp(16, 32, 4, norm=lambda width: nn.GroupNorm(width, width))
    nn.init.constant_(model[1].bias, 0.5)
    return two_training_steps(model, classify(model))


class SequenceClassifier(nn.Module):
    """Embeddings of padded sequences, normalized over the batch and averaged."""

    def __init__(self, norm: nn.Module, channels_first: bool) -> None:
        super().__init__()
        self.tokens, self.norm, self.channels_first = nn.Embedding(16, 32, padding_idx=0), norm, channels_first
        self.mix, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) if self.channels_first else self.norm(x)
        y: Tensor = self.head(F.gelu(self.mix(x)).mean(1))
        return y


def _padded(number: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 16, (32, 16), generator=random)
    lengths = torch.randint(3, 16, (32, 1), generator=random)
    return torch.where(torch.arange(16)[None] < lengths, tokens, 0), torch.randint(4, (32,), generator=random)


@fault("norm-over-padding", "norm")
def batchnorm_over_padded_sequences() -> Setup:
    model: Any = SequenceClassifier(nn.BatchNorm1d(32), channels_first=True)
    return two_training_steps(model, classify(model, _padded))


@fault("norm-over-padding", "norm")
def normscope_batchnorm_without_mask() -> Setup:
    model: Any = SequenceClassifier(normscope.BatchNorm("[b s] d", d=32), channels_first=False)
    return two_training_steps(model, classify(model, _padded))


class BatchNormOverTime(nn.Module):
    """BatchNorm over batch and time, for (b, s, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return y


@fault("norm-leaks-future", "blocks.1.norm1.norm")
def batchnorm_in_decoder() -> Setup:
    model: Any = Decoder(depth=2)
    model.blocks[1].norm1 = BatchNormOverTime(32)
    return two_training_steps(model, predict_next(model))


@fault("norm-leaks-future", "blocks.0.norm2")
def layernorm_over_time_and_width() -> Setup:
    model: Any = Decoder(depth=2)
    model.blocks[0].norm2 = nn.LayerNorm([16, 32])
    return two_training_steps(model, predict_next(model))


@fault("norm-leaks-future", "blocks.0.norms.0", ["norm-leaks-future"])
def instancenorm_in_normscope_gpt() -> Setup:
    """In all blocks."""
    model: Any = gpt("llama", 0, norm="instance", allow_future_leak=True)
    return two_training_steps(model, predict_next(model))
