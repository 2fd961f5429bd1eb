"""Residual streams that grow without end, and post-norm models that start too fast."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, adam, fault, running, steps
from tests.diagnostics.healthy.foreign import bert
from tests.diagnostics.healthy.wirings import gpt
from tests.diagnostics.networks import Decoder, Encoder, ResNet, he
from tests.diagnostics.tasks import classify, count_up, images, predict


@fault("residual-stream-grows", "blocks.9", ["exploding-gradients", "attention-collapsed", "loss-above-chance"])
def decoder_without_norms() -> Scene:
    """Every branch is as large as the stream, and so is the way back; queries, keys and head are given thousands.

    With a gain of 1.4 the gradients reach 1e32, and whether they overflow is up to the order of torch's sums.
    """
    model: Any = Decoder(depth=10, norm=lambda width: nn.Identity())
    he(model, gain=1.1)
    return running(model, predict(model))


@fault("residual-stream-grows", "blocks.11", ["loss-above-chance", "exploding-gradients"])
def resnet_without_norms() -> Scene:
    model: Any = ResNet(depth=12, norm=lambda channels: nn.Identity())
    he(model, gain=2.0)
    return running(model, classify(model, images))


@fault("residual-stream-grows", "blocks.7", ["outlier-weights", "abnormal-gain"])
def later_blocks_write_ever_more() -> Scene:
    """Norms do not help if the last weights of the branches grow from block to block; the first and last are odd."""
    model: Any = gpt("llama", 0, depth=8)
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            layer: Any = block
            for part in (layer.attention.out, layer.mlp.down):
                part.weight.mul_(2.2 ** (i - 4))
    return running(model, predict(model))


@fault("post-norm-without-warmup", "blocks")
def deep_post_norm_at_its_full_rate() -> Scene:
    model: Any = Decoder(depth=8, post=True)
    return running(model, predict(model), lr=1e-3)


@fault("post-norm-without-warmup", "encoder.layers")
def encoder_of_six_layers_at_its_full_rate() -> Scene:
    model: Any = Encoder(depth=6, first=False)
    return model, lambda: steps([count_up(model)(0)], adam(model, 1e-3))


@fault("post-norm-without-warmup", "bert.encoder.layer", needs="transformers")
def bert_at_its_full_rate() -> Scene:
    model: Any = bert(depth=6)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100)
    return model, lambda: steps([count_up(model)(0)], optimiser)


@fault("residual-branch-dominates", "blocks.2", ["outlier-weights", "abnormal-gain"], note=True)
def branch_that_drowns_the_stream() -> Scene:
    """Its last weight is a hundred times that of the other blocks."""
    model: Any = Decoder(depth=4)
    with torch.no_grad():
        model.blocks[2].feed.down.weight.mul_(200.0)
    return running(model, predict(model))


@fault("residual-branch-dominates", "blocks.1")
def factor_behind_a_branch() -> Scene:
    """A scale that was meant to be 0.02 and is 200."""
    model: Any = gpt("gpt2", 0)
    branch = model.blocks[1].mlp
    branch.register_forward_hook(lambda module, inputs, output: output * 1e4)
    return model, lambda: predict(model)(0)().backward()


class Functional(nn.Module):
    """A block whose branch is behind functional dropout and a factor."""

    def __init__(self, width: int, post: bool = False, factor: float = 1.0) -> None:
        super().__init__()
        self.norm, self.post, self.factor = nn.LayerNorm(width), post, factor
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.gelu(self.up(x if self.post else self.norm(x))))
        y = x + self.factor * F.dropout(y, 0.1, self.training)
        z: Tensor = self.norm(y) if self.post else y
        return z


@fault("residual-branch-dominates", "4", ["loss-above-chance"])
def factor_of_a_thousand_before_one_branch() -> Scene:
    """What the head is given is that branch alone, normalized."""
    blocks = (Functional(32, factor=1000.0 if i == 3 else 1.0) for i in range(8))
    model: Any = nn.Sequential(nn.Linear(16, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 4))
    return model, lambda: classify(model)(0)().backward()


@fault("post-norm-without-warmup", "")
def deep_post_norm_with_functional_dropout() -> Scene:
    model: Any = nn.Sequential(nn.Linear(16, 32), *(Functional(32, post=True) for _ in range(16)), nn.Linear(32, 4))
    return running(model, classify(model), lr=1e-3)
