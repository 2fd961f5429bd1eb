"""Training mistakes: unregistered parameters, missing zero_grad, exploded weights, unnormalized inputs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, run_steps, two_training_steps
from tests.diagnostics.networks import Decoder, StateSpaceModel, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next


class LayerList(nn.Module):
    """Layers in a Python list, so that torch doesn't register them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(16, 16) for _ in range(3)]
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        y: Tensor = self.out(x)
        return y


@fault("unregistered-parameters", "")
def layers_in_python_list() -> Setup:
    model: Any = LayerList()
    return two_training_steps(model, classify(model))


class LayerInForward(nn.Module):
    """A convolution created in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale * nn.Conv2d(x.shape[1], 8, 1)(x)
        return y


@fault("unregistered-parameters", "3")
def layer_created_in_forward() -> Setup:
    model: Any = convnet()
    model.insert(3, LayerInForward())
    return model, lambda: classify(model, images)(0)().backward()


class TensorWeight(nn.Module):
    """A weight that is a tensor rather than an nn.Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(32, 32).div(32**0.5).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.weight)


@fault("unregistered-parameters", "blocks.1.feed")
def weight_not_a_parameter() -> Setup:
    model: Any = Decoder(depth=2)
    model.blocks[1].feed = TensorWeight()
    return two_training_steps(model, predict_next(model))


def _without_zero_grad(model: Any, optimizer: torch.optim.Optimizer, batches: Any, clip: bool = False) -> Setup:
    def run() -> None:
        for number in range(4):
            batches(number)().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


@fault("missing-zero-grad", "")
def missing_zero_grad() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _without_zero_grad(model, torch.optim.SGD(model.parameters(), lr=0.01), classify(model))


@fault("missing-zero-grad", "")
def missing_zero_grad_with_clipping() -> Setup:
    model: Any = Decoder(depth=2)
    return _without_zero_grad(model, torch.optim.AdamW(model.parameters(), lr=1e-4), predict_next(model), clip=True)


@fault("missing-zero-grad", "")
def missing_zero_grad_on_fixed_batch() -> Setup:
    """Gradients hardly differ from step to step."""
    model: Any = mlp(16, 64, 4)
    return _without_zero_grad(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda _: classify(model)(0))


@fault("exploded-weights", "", ["loss-above-chance", "update-too-large"])
def thirty_steps_at_lr_3() -> Setup:
    """Huge weights give huge logits and a huge loss."""
    model: Any = mlp(16, 64, 64, 4)
    return two_training_steps(model, classify(model), after=30, lr=3.0)


@fault("exploded-weights", "head", ["loss-above-chance", "update-too-large"])
def twenty_steps_of_head_at_lr_1() -> Setup:
    """The logits are huge, and so is the loss."""
    model: Any = StateSpaceModel(depth=2)
    groups = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith("head")], "lr": 1e-3},
        {"params": model.head.parameters(), "lr": 1.0},
    ]
    optimizer = torch.optim.Adam(groups)
    run_steps((predict_next(model)(i) for i in range(20)), optimizer)
    return model, lambda: run_steps((predict_next(model)(20 + i) for i in range(2)), optimizer)


@fault("loss-above-chance", "0", ["unscaled-input"])
def unnormalized_pixels() -> Setup:
    model: Any = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    x, labels = images(0)
    pixels = (x - x.min()) / (x.max() - x.min()) * 255
    return model, lambda: F.cross_entropy(model(pixels), labels).backward()


@fault("loss-above-chance", "0", ["unscaled-input"])
def unnormalized_input_column() -> Setup:
    model: Any = mlp(16, 64, 4)
    x, labels = points(0)
    x[:, 3] *= 1e4
    return model, lambda: F.cross_entropy(model(x), labels).backward()
