"""NaN and Inf in outputs, gradients, weights and inputs."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.healthy.huggingface import gpt2, llama
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


@fault("non-finite-output", "4")
def log_of_relu_output() -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), Log(), nn.Linear(32, 4))
    return two_training_steps(model, classify(model))


class MaskedAttention(nn.Module):
    """Attention that masks padding, and so masks every key of a fully padded sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])
        y: Tensor = scores.masked_fill(~mask[:, None], -math.inf).softmax(-1) @ v
        return y


class PaddedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.layers = nn.ModuleList(MaskedAttention(32) for _ in range(3))
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x, mask)
        y: Tensor = self.head(x)
        return y


@fault("non-finite-output", "layers.0")
def attention_over_fully_padded_sequence() -> Setup:
    model: Any = PaddedAttention()
    tokens = torch.randint(16, (4, 8))
    mask = torch.arange(8)[None] < torch.tensor([8, 5, 3, 0])[:, None]
    return model, lambda: model(tokens, mask).square().mean().backward()


@fault("non-finite-output", "4")
def float16_overflow() -> Setup:
    model: Any = mlp(16, 64, 64, 64, 4)
    with torch.no_grad():
        model[2].weight.mul_(4e3)
        model[4].weight.mul_(4e3)

    def run() -> None:
        with torch.no_grad():
            model.half()(points(0)[0].half())

    return model, run


@fault("non-finite-weights", "3")
def nan_in_weight() -> Setup:
    model: Any = convnet()
    with torch.no_grad():
        model[4].weight[0, 0, 0, 0] = math.nan
    model = nn.Sequential(*model)
    return _without_pooling(model)


def _without_pooling(model: nn.Sequential) -> Setup:
    """Drop the pooling layers, so that the layer with the NaN has index 3."""
    layers = [layer for layer in model if not isinstance(layer, nn.MaxPool2d)]
    unpooled = nn.Sequential(*layers)
    return two_training_steps(unpooled, classify(unpooled, images))


@fault("non-finite-weights", "transformer.h.1.ln_2", needs="transformers")
def inf_in_layernorm_weight() -> Setup:
    model: Any = gpt2()
    with torch.no_grad():
        model.transformer.h[1].ln_2.weight[3] = math.inf
    return model, lambda: predict_next(model)(0)().backward()


class DivideByNorm(nn.Module):
    """x / (1 + its norm); the norm has no gradient at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.square().sum(-1, keepdim=True).sqrt())


@fault("non-finite-gradient", "2")
def sqrt_gradient_at_zero_vector() -> Setup:
    model: Any = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), DivideByNorm(), nn.Linear(32, 4))
    x, labels = points(0)
    x[5] = 0.0
    return model, lambda: F.cross_entropy(model(x), labels).backward()


@fault("non-finite-gradient", "2")
def loss_with_sqrt_of_zero() -> Setup:
    """Some outputs equal their targets exactly, as for padded rows, and the loss takes the square root."""
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x = points(0)[0]
    target = model(x).detach()
    target[1:] += 1
    return model, lambda: (model(x) - target).square().sum(-1).sqrt().mean().backward()


@fault("non-finite-output", "model.layers.1.self_attn", ["differs-from-peers"], needs="transformers")
def llama_infinite_attention_scale() -> Setup:
    model: Any = llama(attn_implementation="eager")
    model.model.layers[1].self_attn.scaling = math.inf
    return model, lambda: predict_next(model)(0)().backward()


@fault("non-finite-weights", "")
def nan_in_top_level_parameter() -> Setup:
    """A parameter of the top-level module that forward doesn't use."""
    model: Any = Decoder(depth=2)
    model.unused = nn.Parameter(torch.full((4, 4), math.nan))
    return model, lambda: predict_next(model)(0)().backward()


@fault("non-finite-input", "")
def nan_in_input() -> Setup:
    model: Any = mlp(16, 32, 32, 4)
    x, labels = points(0)
    x[3, 2] = math.nan
    return model, lambda: F.cross_entropy(model(x), labels).backward()


@fault("non-finite-input", "")
def inf_in_input_image() -> Setup:
    """Forward only, in eval mode: no loss and no gradient."""
    model: Any = convnet()
    x = images(0)[0]
    x[1] = (1e5 * x[1].abs() + 1e5).half().float()

    def run() -> None:
        with torch.no_grad():
            model.eval()(x)

    return model, run


class AdditiveMaskAttention(nn.Module):
    """Attention that adds the mask to its scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        y: Tensor = self.out((q @ k.transpose(1, 2) / math.sqrt(x.shape[-1]) + mask).softmax(-1) @ v)
        return y


class AdditiveMaskModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.layers = nn.ModuleList(AdditiveMaskAttention(32) for _ in range(2))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x, mask)
        y: Tensor = self.head(x)
        return y


@fault("non-finite-output", "layers.0")
def additive_mask_hides_all_keys() -> Setup:
    """The mask uses -inf correctly, but hides every key of the first sequence."""
    model: Any = AdditiveMaskModel()
    mask = torch.full((8, 8), -math.inf).triu(1).repeat(4, 1, 1)
    mask[0] = -math.inf
    tokens = torch.randint(16, (4, 8))
    return model, lambda: F.cross_entropy(model(tokens, mask).flatten(0, 1), tokens.flatten()).backward()
