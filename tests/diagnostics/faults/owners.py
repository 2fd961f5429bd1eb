"""Weights that are not the model's, gradients that nobody empties, weights that steps have thrown far off."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running, steps
from tests.diagnostics.networks import Decoder, StateSpaceModel, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict


class InAList(nn.Module):
    """Layers that torch does not see, since a plain list holds them."""

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
def layers_in_a_plain_list() -> Scene:
    model: Any = InAList()
    return running(model, classify(model))


class Fresh(nn.Module):
    """A projection that is made anew in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale * nn.Conv2d(x.shape[1], 8, 1)(x)
        return y


@fault("unregistered-parameters", "3")
def layer_made_in_forward() -> Scene:
    model: Any = convnet()
    model.insert(3, Fresh())
    return model, lambda: classify(model, images)(0)().backward()


class Plain(nn.Module):
    """A weight that is a tensor, and no nn.Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(32, 32).div(32**0.5).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.weight)


@fault("unregistered-parameters", "blocks.1.feed")
def weight_that_is_no_parameter() -> Scene:
    model: Any = Decoder(depth=2)
    model.blocks[1].feed = Plain()
    return running(model, predict(model))


def _never_emptied(model: Any, optimiser: torch.optim.Optimizer, batches: Any, clip: bool = False) -> Scene:
    def run() -> None:
        for number in range(4):
            batches(number)().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()

    return model, run


@fault("missing-zero-grad", "")
def gradients_that_nobody_empties() -> Scene:
    model: Any = mlp(16, 64, 4)
    return _never_emptied(model, torch.optim.SGD(model.parameters(), lr=0.01), classify(model))


@fault("missing-zero-grad", "")
def clipped_gradients_that_nobody_empties() -> Scene:
    model: Any = Decoder(depth=2)
    return _never_emptied(model, torch.optim.AdamW(model.parameters(), lr=1e-4), predict(model), clip=True)


@fault("missing-zero-grad", "")
def gradients_of_one_batch_that_nobody_empties() -> Scene:
    """They hardly differ from step to step."""
    model: Any = mlp(16, 64, 4)
    return _never_emptied(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda _: classify(model)(0))


@fault("exploded-weights", "", ["loss-above-chance", "update-too-large"])
def thirty_steps_of_a_rate_of_three() -> Scene:
    """Logits of huge weights are huge, and so is the loss."""
    model: Any = mlp(16, 64, 64, 4)
    return running(model, classify(model), trained=30, lr=3.0)


@fault("exploded-weights", "head", ["loss-above-chance", "update-too-large"])
def steps_of_the_head_at_a_rate_of_one() -> Scene:
    """Its logits are huge, and so is the loss."""
    model: Any = StateSpaceModel(depth=2)
    groups = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith("head")], "lr": 1e-3},
        {"params": model.head.parameters(), "lr": 1.0},
    ]
    optimiser = torch.optim.Adam(groups)
    steps((predict(model)(i) for i in range(20)), optimiser)
    return model, lambda: steps((predict(model)(20 + i) for i in range(2)), optimiser)


@fault("loss-above-chance", "0")
def pixels_from_0_to_255() -> Scene:
    model: Any = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    pictures, labels = images(0)
    pixels = (pictures - pictures.min()) / (pictures.max() - pictures.min()) * 255
    return model, lambda: F.cross_entropy(model(pixels), labels).backward()


@fault("loss-above-chance", "0")
def one_column_in_another_unit() -> Scene:
    model: Any = mlp(16, 64, 4)
    x, labels = points(0)
    x[:, 3] *= 1e4
    return model, lambda: F.cross_entropy(model(x), labels).backward()
