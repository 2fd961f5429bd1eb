"""Attention that is masked, normalized, scaled or reshaped wrongly."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.networks import Decoder
from tests.diagnostics.tasks import classify_stride, predict_next, texts


class PlainAttention(nn.Module):
    """Hand-written attention; its parts can be replaced."""

    heads = 4
    axis = -1

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def scale(self, scores: Tensor, d: int) -> Tensor:
        return scores / math.sqrt(d)

    def mask(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, -1))
        weights = self.mask(self.scale(q @ k.transpose(-1, -2), q.shape[-1])).softmax(self.axis)
        y: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return y


def decoder(kind: type[PlainAttention], width: int = 32, depth: int = 2) -> Decoder:
    model = Decoder(depth=depth, width=width)
    for block in model.blocks:
        block.attention = kind(width)
    return model


class Multiplied(PlainAttention):
    def mask(self, scores: Tensor) -> Tensor:
        return scores * torch.ones(scores.shape[-2:]).tril()


class FilledWithSmallest(PlainAttention):
    """The smallest positive number instead of the most negative one."""

    def mask(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, torch.finfo(scores.dtype).tiny)


class OnlyItself(PlainAttention):
    def mask(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~torch.eye(scores.shape[-1], dtype=torch.bool), -math.inf)


@fault("attention-mask", "blocks.0.attention", ["attention-mask", "leaks-future"])
def scores_times_mask() -> Setup:
    model = decoder(Multiplied)
    return two_training_steps(model, predict_next(model))


@fault("attention-mask", "blocks.0.attention", ["attention-mask", "leaks-future"])
def masked_with_a_tiny_number() -> Setup:
    model = decoder(FilledWithSmallest)
    return two_training_steps(model, predict_next(model))


@fault("attention-mask", "blocks.0.attention", ["attention-mask", "zero-gradient", "attention-uniform", "no-gradient"])
def mask_that_shows_the_diagonal_only() -> Setup:
    model = decoder(OnlyItself)
    return two_training_steps(model, predict_next(model))


class PaddedClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(17, 32), nn.Linear(32, 16)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.tokens(tokens), src_key_padding_mask=tokens != 16)
        y: Tensor = self.head(x[:, 0])
        return y


@fault("attention-mask", "layer.self_attn", ["attention-uniform"])
def padding_mask_inverted() -> Setup:
    model = PaddedClassifier()

    def batch(number: int) -> Any:
        tokens, targets = texts(number)
        hidden = torch.arange(16) >= 5 + torch.arange(16)[:, None] % 9
        tokens = tokens.masked_fill(hidden, 16)
        return lambda: nn.functional.cross_entropy(model(tokens), targets[:, 0])

    return two_training_steps(model, batch)


class OverQueries(PlainAttention):
    axis = -2

    def mask(self, scores: Tensor) -> Tensor:
        return scores


class OverHeads(OverQueries):
    axis = 1


@fault("attention-softmax-axis", "blocks.0.attention", ["attention-softmax-axis", "leaks-future"])
def softmax_over_queries() -> Setup:
    model = decoder(OverQueries)
    return two_training_steps(model, predict_next(model))


@fault("attention-softmax-axis", "blocks.0.attention", ["attention-softmax-axis", "leaks-future"])
def softmax_over_heads() -> Setup:
    model = decoder(OverHeads)
    return two_training_steps(model, predict_next(model))


class Unscaled(PlainAttention):
    heads = 1

    def scale(self, scores: Tensor, d: int) -> Tensor:
        return scores


class Multiplying(PlainAttention):
    def scale(self, scores: Tensor, d: int) -> Tensor:
        return scores * math.sqrt(d)


def _with_larger_weights(model: Decoder) -> Decoder:
    for block in model.blocks:
        nn.init.xavier_uniform_(block.attention.qkv.weight, gain=2.0)  # type: ignore[union-attr, arg-type]
    return model


@fault("attention-unscaled", "blocks.0.attention", ["attention-unscaled", "attention-collapsed", "abnormal-gain"])
def scores_without_scale() -> Setup:
    model = _with_larger_weights(decoder(Unscaled, width=64))
    return two_training_steps(model, predict_next(model))


@fault("attention-unscaled", "blocks.0.attention", ["attention-unscaled", "attention-collapsed", "abnormal-gain"])
def scores_multiplied_by_the_root() -> Setup:
    model = _with_larger_weights(decoder(Multiplying, width=64))
    return two_training_steps(model, predict_next(model))


class ViewedHeads(PlainAttention):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.heads, x.shape[1], -1)

    def mask(self, scores: Tensor) -> Tensor:
        return scores


@fault("mixes-axes", "blocks.0.attention", ["mixes-axes"])
def heads_by_view() -> Setup:
    model = decoder(ViewedHeads)
    return two_training_steps(model, lambda i: lambda: model(texts(i, count=6)[0]).square().mean())


class ChannelsByView(nn.Module):
    """Gives a convolution (b, c, t) by a view of (b, t, c)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.conv, self.head = nn.Embedding(16, 24), nn.Conv1d(24, 24, 3, padding=1), nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        y: Tensor = self.head(torch.relu(self.conv(x.reshape(len(x), 24, -1))).mean(2))
        return y


@fault("mixes-axes", "")
def channels_by_reshape() -> Setup:
    model = ChannelsByView()
    return two_training_steps(model, classify_stride(model))
