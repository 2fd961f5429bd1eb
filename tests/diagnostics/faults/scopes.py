"""Norms over the wrong numbers: too few, padding, the future."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.wirings import gpt
from tests.diagnostics.networks import Decoder, mlp
from tests.diagnostics.tasks import classify, images, points, predict


@fault("norm-over-few-values", "1")
def batch_norm_of_a_batch_of_one() -> Scene:
    """torch refuses it."""
    model: Any = mlp(16, 32, 4, norm=nn.BatchNorm1d)
    return running(model, classify(model, lambda i: points(i, count=1)))


@fault("norm-over-few-values", "4")
def batch_norm_of_a_batch_of_two_over_single_pixels() -> Scene:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 6, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return running(model, classify(model, lambda i: images(i, count=2)))


@fault("norm-over-few-values", "1", ["norm-over-few-values"])
def batch_norm_of_a_batch_of_four() -> Scene:
    model: Any = mlp(16, 32, 32, 4, norm=nn.BatchNorm1d)
    return running(model, classify(model, lambda i: points(i, count=4)))


@fault("norm-over-few-values", "1", ["zero-gradient"])
def groups_of_one_number() -> Scene:
    """As many groups as channels, for vectors: each is its own mean, and only the bias is left of it.

    The bias is not zero: whether a number less itself is zero or a rounding is up to how torch computes it.
    """
    model: Any = mlp(16, 32, 4, norm=lambda width: nn.GroupNorm(width, width))
    nn.init.constant_(model[1].bias, 0.5)
    return running(model, classify(model))


class Sentences(nn.Module):
    """Embeddings of padded texts, normalised over the batch, and their mean."""

    def __init__(self, norm: nn.Module, turned: bool) -> None:
        super().__init__()
        self.tokens, self.norm, self.turned = nn.Embedding(16, 32, padding_idx=0), norm, turned
        self.mix, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) if self.turned else self.norm(x)
        y: Tensor = self.head(F.gelu(self.mix(x)).mean(1))
        return y


def _padded(number: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 16, (32, 16), generator=random)
    lengths = torch.randint(3, 16, (32, 1), generator=random)
    return torch.where(torch.arange(16)[None] < lengths, tokens, 0), torch.randint(4, (32,), generator=random)


@fault("norm-over-padding", "norm")
def batch_norm_over_padded_texts() -> Scene:
    model: Any = Sentences(nn.BatchNorm1d(32), turned=True)
    return running(model, classify(model, _padded))


@fault("norm-over-padding", "norm")
def our_batch_norm_without_its_mask() -> Scene:
    model: Any = Sentences(normscope.BatchNorm("[b s] d", d=32), turned=False)
    return running(model, classify(model, _padded))


class OverTime(nn.Module):
    """Batch norm over batch and time, for (b, s, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return y


@fault("norm-leaks-future", "blocks.1.norm1.norm")
def batch_norm_in_a_decoder() -> Scene:
    model: Any = Decoder(depth=2)
    model.blocks[1].norm1 = OverTime(32)
    return running(model, predict(model))


@fault("norm-leaks-future", "blocks.0.norm2")
def layer_norm_over_time_and_width() -> Scene:
    model: Any = Decoder(depth=2)
    model.blocks[0].norm2 = nn.LayerNorm((16, 32))
    return running(model, predict(model))


@fault("norm-leaks-future", "blocks.0.norms.0", ["norm-leaks-future"])
def instance_norm_in_our_gpt() -> Scene:
    """In all its blocks."""
    model: Any = gpt("llama", 0, norm="instance", allow_future_leak=True)
    return running(model, predict(model))
