"""Weights that start wrong: copies, odd ones, off-centre ones, units that are all one."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.foreign import gpt2, label_images, vit
from tests.diagnostics.healthy.wirings import gpt
from tests.diagnostics.networks import Decoder, Encoder, LongShort, ResNet, mlp
from tests.diagnostics.tasks import classify, count_up, images, predict


@fault("duplicate-weights", "encoder.layers.1")
def encoder_as_torch_makes_it() -> Scene:
    model: Any = Encoder(fresh=False)
    return model, lambda: count_up(model)(0)().backward()


@fault("duplicate-weights", "blocks.3")
def block_that_is_a_copy() -> Scene:
    model: Any = Decoder(depth=4)
    model.blocks[3] = copy.deepcopy(model.blocks[1])
    return model, lambda: predict(model)(0)().backward()


@fault("duplicate-weights", "blocks.2.conv2")
def convolution_loaded_twice() -> Scene:
    model: Any = ResNet(depth=3)
    model.blocks[2].load_state_dict({"conv2.weight": model.blocks[0].conv2.weight}, strict=False)
    return model, lambda: classify(model, images)(0)().backward()


@fault("abnormal-gain", "4")
def weights_of_size_one() -> Scene:
    model: Any = mlp(16, 128, 128, 128, 4, activation=nn.GELU)
    nn.init.normal_(model[4].weight)
    return running(model, classify(model))


@fault("abnormal-gain", "blocks.1.mlp.up")
def weights_drawn_by_the_wrong_fan() -> Scene:
    model: Any = gpt("llama", 0, width=32)
    part: Any = model.blocks[1]
    with torch.no_grad():
        part.mlp.up.weight.normal_(std=2.0)
    return running(model, predict(model))


@fault("abnormal-gain", "3")
def turned_convolution_with_a_gain_of_ten() -> Scene:
    """Each output of it sums 64 channels x 16 places of the kernel / 4 of the stride."""
    model: Any = nn.Sequential(
        nn.Linear(16, 1024), nn.Unflatten(1, (64, 4, 4)), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    nn.init.normal_(model[3].weight, std=10 / math.sqrt(256))
    return model, lambda: classify(model)(0)().backward()


class Doubly(nn.Linear):
    """A layer that was written to scale by itself, and whose author scaled it the wrong way."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * math.sqrt(self.in_features) * 3


@fault("abnormal-gain", "blocks.1.feed.up")
def layer_that_scales_the_wrong_way() -> Scene:
    model: Any = Decoder(depth=3)
    part: Any = model.blocks[1]
    part.feed.up = Doubly(32, 128)
    return running(model, predict(model))


@fault("uncentered-weights", "2")
def weights_from_zero_to_one() -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    nn.init.uniform_(model[2].weight, 0.0, 0.2)
    return running(model, classify(model))


@fault("uncentered-weights", "head")
def head_that_starts_positive() -> Scene:
    model: Any = LongShort()
    with torch.no_grad():
        model.head.weight.abs_()
    return running(model, predict(model))


@fault("outlier-weights", "transformer.h.2.attn.c_proj", needs="transformers")
def projection_of_one_block_fifty_times_larger() -> Scene:
    model: Any = gpt2(depth=5)
    with torch.no_grad():
        model.transformer.h[2].attn.c_proj.weight.mul_(50.0)
    return running(model, predict(model))


@fault("outlier-weights", "vit.layers.1.mlp.fc1", needs="transformers")
def weights_of_one_block_hardly_there() -> Scene:
    model: Any = vit(depth=4)
    name = next(n for n, m in model.named_modules() if n.endswith("1.mlp.fc1"))
    with torch.no_grad():
        model.get_submodule(name).weight.mul_(0.02)
    return model, lambda: label_images(model)(0)().backward()


@fault("identical-units", "2")
def layer_filled_with_a_constant() -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[2].weight, 0.02)
    nn.init.zeros_(model[2].bias)
    return model, lambda: classify(model)(0)().backward()


@fault("identical-units", "tokens")
def embedding_with_the_same_row_for_all() -> Scene:
    model: Any = Decoder(depth=2)
    with torch.no_grad():
        model.tokens.weight.copy_(model.tokens.weight[:1].expand_as(model.tokens.weight).clone())
    return model, lambda: predict(model)(0)().backward()
