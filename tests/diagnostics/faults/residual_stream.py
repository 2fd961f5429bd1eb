"""Residual streams that grow too much, dominant branches, and post-norm models without warmup."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, fault, run_steps, two_training_steps
from tests.diagnostics.healthy.gpts import gpt
from tests.diagnostics.healthy.huggingface import bert
from tests.diagnostics.networks import Decoder, Encoder, ResNet, scaled_init
from tests.diagnostics.tasks import classify, classify_stride, images, predict_next


@fault("residual-stream-grows", "blocks.9", ["exploding-gradients", "attention-collapsed", "loss-above-chance"])
def decoder_without_norms() -> Setup:
    """Every branch is as large as the stream, so queries, keys and the head get inputs in the thousands.

    With a gain of 1.4 the gradients reach 1e32, and whether they overflow depends on torch's summation order.
    """
    model: Any = Decoder(depth=10, norm=lambda width: nn.Identity())
    scaled_init(model, gain=1.1)
    return two_training_steps(model, predict_next(model))


@fault("residual-stream-grows", "blocks.11", ["loss-above-chance", "exploding-gradients"])
def resnet_without_norms() -> Setup:
    model: Any = ResNet(depth=12, norm=lambda channels: nn.Identity())
    scaled_init(model, gain=2.0)
    return two_training_steps(model, classify(model, images))


@fault("residual-stream-grows", "blocks.7", ["outlier-weights", "abnormal-gain"])
def residual_branches_grow_with_depth() -> Setup:
    """Output weights of the branches grow from block to block despite the norms; the first and last are outliers."""
    model: Any = gpt("llama", 0, depth=8)
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            layer: Any = block
            for part in (layer.attention.out, layer.mlp.down):
                part.weight.mul_(2.2 ** (i - 4))
    return two_training_steps(model, predict_next(model))


@fault("post-norm-without-warmup", "")
def deep_post_norm_without_warmup() -> Setup:
    model: Any = Decoder(depth=8, post=True)
    return two_training_steps(model, predict_next(model), lr=1e-3)


@fault("post-norm-without-warmup", "encoder")
def encoder_without_warmup() -> Setup:
    model: Any = Encoder(depth=6, norm_first=False)
    return model, lambda: run_steps([classify_stride(model)(0)], adamw(model, 1e-3))


@fault("post-norm-without-warmup", "bert.encoder", needs="transformers")
def bert_without_warmup() -> Setup:
    model: Any = bert(depth=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return model, lambda: run_steps([classify_stride(model)(0)], optimizer)


@fault("residual-branch-dominates", "blocks.2", ["outlier-weights", "abnormal-gain"], note=True)
def one_residual_branch_too_large() -> Setup:
    """The output weight is 200 times that of the other blocks."""
    model: Any = Decoder(depth=4)
    with torch.no_grad():
        model.blocks[2].feed.down.weight.mul_(200.0)
    return two_training_steps(model, predict_next(model))


@fault("residual-branch-dominates", "blocks.1")
def residual_branch_scaled_by_hook() -> Setup:
    """A forward hook multiplies the branch by 1e4."""
    model: Any = gpt("gpt2", 0)
    branch = model.blocks[1].mlp
    branch.register_forward_hook(lambda module, inputs, output: output * 1e4)
    return model, lambda: predict_next(model)(0)().backward()


class FunctionalBlock(nn.Module):
    """A block whose branch ends in functional dropout and a scale factor."""

    def __init__(self, width: int, post: bool = False, factor: float = 1.0) -> None:
        super().__init__()
        self.norm, self.post, self.factor = nn.LayerNorm(width), post, factor
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.gelu(self.up(x if self.post else self.norm(x))))
        y = x + self.factor * F.dropout(y, 0.1, self.training)
        z: Tensor = self.norm(y) if self.post else y
        return z


@fault("residual-branch-dominates", "4", ["loss-above-chance", "differs-from-peers"])
def residual_branch_scaled_by_1000() -> Setup:
    """The head gets little more than this branch, normalized."""
    blocks = (FunctionalBlock(32, factor=1000.0 if i == 3 else 1.0) for i in range(8))
    model: Any = nn.Sequential(nn.Linear(16, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 4))
    return model, lambda: classify(model)(0)().backward()


@fault("post-norm-without-warmup", "")
def deep_post_norm_with_functional_dropout() -> Setup:
    model: Any = nn.Sequential(
        nn.Linear(16, 32), *(FunctionalBlock(32, post=True) for _ in range(16)), nn.Linear(32, 4)
    )
    return two_training_steps(model, classify(model), lr=1e-3)
