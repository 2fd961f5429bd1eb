"""Models that see later tokens or other samples, or do not see positions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Setup, fault, two_training_steps
from tests.diagnostics.networks import Decoder, Encoder
from tests.diagnostics.tasks import classify_stride, predict_next, texts


@fault("leaks-future", "blocks.0.attention")
def decoder_without_mask() -> Setup:
    model: Any = Decoder(depth=3, causal=False)
    return two_training_steps(model, predict_next(model))


@fault("leaks-future", "conv")
def symmetric_convolution_of_values() -> Setup:
    """Predicts the next value of a series; the channels come first."""
    model: Any = nn.Sequential()
    model.add_module("conv", nn.Conv1d(1, 16, 3, padding=1))
    model.add_module("act", nn.GELU())
    model.add_module("out", nn.Conv1d(16, 1, 1))

    def batch(number: int) -> Objective:
        series = (texts(number)[0].float() / 3).sin()[:, None]
        return lambda: F.mse_loss(model(series[..., :-1]), series[..., 1:])

    return two_training_steps(model, batch)


@fault("leaks-future", "encoder.layers.0.self_attn", ["duplicate-weights"])
def bidirectional_model_with_its_loss_inside() -> Setup:
    """forward takes whole sequences, shifts them itself, and returns the loss too."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.head(self.encoder(self.tokens(tokens[:, :-1])))
            return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]), logits

    model = WithLoss()
    return two_training_steps(model, lambda i: lambda: model(torch.cat(texts(i), 1)[:, :17])[0])


class Tagged(nn.Module):
    """Classifies sequences after a layer that may mix samples."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.tokens, self.layer, self.head = nn.Embedding(16, 32), layer, nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.tokens(tokens))
        y: Tensor = self.head((x[0] if isinstance(x, tuple) else x).mean(1))
        return y


class NormalizedBySamples(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=0)


@fault("mixes-samples", "layer")
def gru_over_the_batch() -> Setup:
    model = Tagged(nn.GRU(32, 32))
    return two_training_steps(model, classify_stride(model))


@fault("mixes-samples", "layer")
def softmax_over_the_batch() -> Setup:
    model = Tagged(NormalizedBySamples())
    return two_training_steps(model, classify_stride(model))


class Positioned(nn.Module):
    """Sines of positions, of which `pick` takes those that are added."""

    def __init__(self, pick: Any) -> None:
        super().__init__()
        self.pick, self.tokens, self.inner = pick, nn.Embedding(16, 32), Encoder(depth=1).encoder
        self.positional = Table()
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        y: Tensor = self.head(self.inner(x + self.pick(self.positional.pe, x)).mean(1))
        return y


class Table(nn.Module):
    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64.0)[:, None] / 10000 ** (torch.arange(16) / 16)
        self.register_buffer("pe", torch.cat([angles.sin(), angles.cos()], 1))


@fault("positions-unused", "positional")
def the_same_position_for_all_tokens() -> Setup:
    model = Positioned(lambda pe, _: pe[3])
    return two_training_steps(model, classify_stride(model))


@fault("positions-unused", "positional")
def positions_times_zero() -> Setup:
    model = Positioned(lambda pe, x: 0.0 * pe[: x.shape[1]])
    return two_training_steps(model, classify_stride(model))


@fault("positions-along-batch", "positional")
def positions_by_the_size_of_the_batch() -> Setup:
    """pe[:x.size(0)] comes from an example whose batch is the second axis."""
    model = Positioned(lambda pe, x: pe[: x.shape[0], None])
    return two_training_steps(model, classify_stride(model))


@fault("positions-along-batch", "positional")
def positions_along_the_batch_of_a_decoder() -> Setup:
    model: Any = Decoder(depth=2)
    del model.positions
    model.positional = Table()

    def forward(self: Any, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positional.pe[: tokens.shape[0], None]
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y

    model.__class__ = type("DecoderAlongBatch", (Decoder,), {"forward": forward})
    return two_training_steps(model, predict_next(model))
