"""Initialization faults: copied weights, abnormal gains, uncentered weights, outliers, identical units."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.healthy.gpts import gpt
from tests.diagnostics.healthy.huggingface import gpt2, label_images, vit
from tests.diagnostics.networks import Decoder, Encoder, LSTMModel, ResNet, mlp
from tests.diagnostics.tasks import classify, classify_stride, images, points, predict_next


@fault("duplicate-weights", "encoder.layers.1")
def torch_encoder_default_init() -> Setup:
    model: Any = Encoder(reinitialize=False)
    return model, lambda: classify_stride(model)(0)().backward()


@fault("duplicate-weights", "blocks.3")
def copied_block() -> Setup:
    model: Any = Decoder(depth=4)
    model.blocks[3] = copy.deepcopy(model.blocks[1])
    return model, lambda: predict_next(model)(0)().backward()


@fault("duplicate-weights", "blocks.2.conv2")
def conv_weight_loaded_twice() -> Setup:
    model: Any = ResNet(depth=3)
    model.blocks[2].load_state_dict({"conv2.weight": model.blocks[0].conv2.weight}, strict=False)
    return model, lambda: classify(model, images)(0)().backward()


@fault("abnormal-gain", "4")
def unit_std_weights() -> Setup:
    model: Any = mlp(16, 128, 128, 128, 4, activation=nn.GELU)
    nn.init.normal_(model[4].weight)
    return two_training_steps(model, classify(model))


@fault("abnormal-gain", "blocks.1.mlp.up")
def std_2_weights_in_llama_mlp() -> Setup:
    model: Any = gpt("llama", 0, width=32)
    part: Any = model.blocks[1]
    with torch.no_grad():
        part.mlp.up.weight.normal_(std=2.0)
    return two_training_steps(model, predict_next(model))


@fault("abnormal-gain", "3")
def conv_transpose_gain_of_ten() -> Setup:
    """Each output sums 64 channels x 16 kernel positions / 4 for the stride."""
    model: Any = nn.Sequential(
        nn.Linear(16, 1024), nn.Unflatten(1, (64, 4, 4)), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    nn.init.normal_(model[3].weight, std=10 / math.sqrt(256))
    return model, lambda: classify(model)(0)().backward()


class ScaledLinear(nn.Linear):
    """Multiplies by sqrt(fan_in) where it should divide."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * math.sqrt(self.in_features) * 3


@fault("abnormal-gain", "blocks.1.feed.up")
def linear_with_inverted_scale() -> Setup:
    model: Any = Decoder(depth=3)
    part: Any = model.blocks[1]
    part.feed.up = ScaledLinear(32, 128)
    return two_training_steps(model, predict_next(model))


@fault("uncentered-weights", "2")
def all_positive_uniform_weights() -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    nn.init.uniform_(model[2].weight, 0.0, 0.2)
    return two_training_steps(model, classify(model))


@fault("uncentered-weights", "head")
def all_positive_head() -> Setup:
    model: Any = LSTMModel()
    with torch.no_grad():
        model.head.weight.abs_()
    return two_training_steps(model, predict_next(model))


@fault("outlier-weights", "transformer.h.2.attn.c_proj", needs="transformers")
def one_projection_50_times_larger() -> Setup:
    model: Any = gpt2(depth=5)
    with torch.no_grad():
        model.transformer.h[2].attn.c_proj.weight.mul_(50.0)
    return two_training_steps(model, predict_next(model))


@fault("outlier-weights", "vit.layers.1.mlp.fc1", needs="transformers")
def one_mlp_50_times_smaller() -> Setup:
    model: Any = vit(depth=4)
    name = next(n for n, m in model.named_modules() if n.endswith("1.mlp.fc1"))
    with torch.no_grad():
        model.get_submodule(name).weight.mul_(0.02)
    return model, lambda: label_images(model)(0)().backward()


@fault("identical-units", "2")
def constant_weights() -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[2].weight, 0.02)
    nn.init.zeros_(model[2].bias)
    return model, lambda: classify(model)(0)().backward()


@fault("identical-units", "tokens")
def identical_embedding_rows() -> Setup:
    model: Any = Decoder(depth=2)
    with torch.no_grad():
        model.tokens.weight.copy_(model.tokens.weight[:1].expand_as(model.tokens.weight).clone())
    return model, lambda: predict_next(model)(0)().backward()


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(16, 32), nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 16, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return y


@fault("untied-weights", "head")
def head_is_a_clone_of_the_embedding() -> Setup:
    model: Any = Language()
    model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())
    return two_training_steps(model, predict_next(model))


@fault("untied-weights", "head")
def head_filled_with_the_embedding() -> Setup:
    model: Any = Language()
    with torch.no_grad():
        model.head.weight.copy_(model.tokens.weight)
    return model, lambda: predict_next(model)(0)().backward()


@fault("exploding-gradients", "lstm")
def recurrent_weights_from_a_normal_distribution() -> Setup:
    model: Any = LSTMModel()
    nn.init.normal_(model.lstm.weight_hh_l0)
    return two_training_steps(model, predict_next(model))


@fault("abnormal-bias", "2")
def bias_of_a_hundred() -> Setup:
    model: Any = mlp(16, 64, 64, 4, activation=nn.GELU)
    nn.init.constant_(model[2].bias, 100.0)
    nn.init.normal_(model[4].weight, std=1e-3)
    return two_training_steps(model, classify(model))


@fault("abnormal-bias", "0")
def bias_of_minus_twenty_in_a_convolution() -> Setup:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    nn.init.constant_(model[0].bias, -20.0)
    return two_training_steps(model, classify(model, images))


@fault("duplicate-weights", "document")
def tower_copied_before_training() -> Setup:
    """After the steps, the copies are no longer equal."""
    model: Any = TwoTowers()
    return two_training_steps(model, lambda i: lambda: model(points(i)[0], points(i + 9)[0]))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one = mlp(16, 32, 8)
        self.query, self.document = one, copy.deepcopy(one)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scores = self.query(a) @ self.document(b).T
        return nn.functional.cross_entropy(scores, torch.arange(len(a)))
