"""Numbers that are not finite, made forward, backward, or found in the weights."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.foreign import gpt2, llama
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


@fault("non-finite-output", "4")
def logarithm_after_a_relu() -> Scene:
    model: Any = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), Logarithm(), nn.Linear(32, 4)
    )
    return running(model, classify(model))


class MaskedAttention(nn.Module):
    """Attention that hides padding, and so hides all keys from the queries of an empty text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])
        y: Tensor = scores.masked_fill(~real[:, None], -math.inf).softmax(-1) @ v
        return y


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.layers = nn.ModuleList(MaskedAttention(32) for _ in range(3))
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x, real)
        y: Tensor = self.head(x)
        return y


@fault("non-finite-output", "layers.0")
def attention_of_a_text_that_is_all_padding() -> Scene:
    model: Any = Padded()
    tokens = torch.randint(16, (4, 8))
    real = torch.arange(8)[None] < torch.tensor([8, 5, 3, 0])[:, None]
    return model, lambda: model(tokens, real).square().mean().backward()


@fault("non-finite-output", "4")
def overflow_of_half_precision() -> Scene:
    model: Any = mlp(16, 64, 64, 64, 4)
    with torch.no_grad():
        model[2].weight.mul_(4e3)
        model[4].weight.mul_(4e3)

    def run() -> None:
        with torch.no_grad():
            model.half()(points(0)[0].half())

    return model, run


@fault("non-finite-weights", "3")
def weight_with_a_nan() -> Scene:
    model: Any = convnet()
    with torch.no_grad():
        model[4].weight[0, 0, 0, 0] = math.nan
    model = nn.Sequential(*model)
    return _moved(model)


def _moved(model: nn.Sequential) -> Scene:
    """Without a pool before it, the layer in question is the fourth."""
    layers = [layer for layer in model if not isinstance(layer, nn.MaxPool2d)]
    moved = nn.Sequential(*layers)
    return running(moved, classify(moved, images))


@fault("non-finite-weights", "transformer.h.1.ln_2", needs="transformers")
def gain_that_is_infinite() -> Scene:
    model: Any = gpt2()
    with torch.no_grad():
        model.transformer.h[1].ln_2.weight[3] = math.inf
    return model, lambda: predict(model)(0)().backward()


class Length(nn.Module):
    """x over its length; at zero the length has no slope."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.square().sum(-1, keepdim=True).sqrt())


@fault("non-finite-gradient", "2")
def length_of_a_vector_of_zeros() -> Scene:
    model: Any = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), Length(), nn.Linear(32, 4))
    x, labels = points(0)
    x[5] = 0.0
    return model, lambda: F.cross_entropy(model(x), labels).backward()


@fault("non-finite-gradient", "2")
def loss_whose_root_has_no_slope_at_zero() -> Scene:
    """Outputs are at their targets to the bit, as for a padded row, and the root of the error is taken."""
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x = points(0)[0]
    target = model(x).detach()
    target[1:] += 1
    return model, lambda: (model(x) - target).square().sum(-1).sqrt().mean().backward()


@fault("non-finite-output", "model.layers.1.self_attn", needs="transformers")
def llama_that_divides_by_zero_in_attention() -> Scene:
    model: Any = llama(attn_implementation="eager")
    model.model.layers[1].self_attn.scaling = math.inf
    return model, lambda: predict(model)(0)().backward()


@fault("non-finite-weights", "")
def parameter_of_the_model_itself() -> Scene:
    """It belongs to no layer, and nothing reads it yet."""
    model: Any = Decoder(depth=2)
    model.unused = nn.Parameter(torch.full((4, 4), math.nan))
    return model, lambda: predict(model)(0)().backward()


@fault("non-finite-input", "")
def number_that_is_missing_in_a_batch() -> Scene:
    model: Any = mlp(16, 32, 32, 4)
    x, labels = points(0)
    x[3, 2] = math.nan
    return model, lambda: F.cross_entropy(model(x), labels).backward()


@fault("non-finite-input", "")
def image_that_overflows_before_a_convnet() -> Scene:
    """Forward alone, in evaluation: there is no loss and no gradient to show it."""
    model: Any = convnet()
    x = images(0)[0]
    x[1] = (1e5 * x[1].abs() + 1e5).half().float()

    def run() -> None:
        with torch.no_grad():
            model.eval()(x)

    return model, run


class AddedMask(nn.Module):
    """Attention that adds the mask which it is given to its scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        y: Tensor = self.out((q @ k.transpose(1, 2) / math.sqrt(x.shape[-1]) + mask).softmax(-1) @ v)
        return y


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.layers = nn.ModuleList(AddedMask(32) for _ in range(2))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x, mask)
        y: Tensor = self.head(x)
        return y


@fault("non-finite-output", "layers.0")
def added_mask_that_hides_all_from_one_text() -> Scene:
    """The mask is minus infinity, as it should be; but in the first text no key is left."""
    model: Any = Added()
    mask = torch.full((8, 8), -math.inf).triu(1).repeat(4, 1, 1)
    mask[0] = -math.inf
    tokens = torch.randint(16, (4, 8))
    return model, lambda: F.cross_entropy(model(tokens, mask).flatten(0, 1), tokens.flatten()).backward()
