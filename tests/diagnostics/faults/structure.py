"""Modules that are put together wrongly."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, fault, run_steps, two_training_steps
from tests.diagnostics.networks import Decoder, FeedForward
from tests.diagnostics.tasks import classify, images, predict_next


class Blocks(nn.Module):
    """Residual blocks, called in the order of `plan`."""

    def __init__(self, plan: tuple[int, ...], without_residual: int = -1) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList(ResidualMLP(i != without_residual) for i in range(max(plan) + 1))
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i in self.plan:
            x = self.blocks[i](x)
        y: Tensor = self.head(x)
        return y


class ResidualMLP(nn.Module):
    def __init__(self, has_skip: bool = True) -> None:
        super().__init__()
        self.norm, self.feed, self._has_skip = nn.LayerNorm(32), FeedForward(32), has_skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.feed(self.norm(x))
        return x + y if self._has_skip else y


@fault("called-more-often-than-peers", "blocks.1")
def one_block_called_twice() -> Setup:
    model = Blocks((0, 1, 1, 2, 3))
    return two_training_steps(model, classify(model))


@fault("called-more-often-than-peers", "blocks.1")
def one_block_called_in_place_of_another() -> Setup:
    """The third block is never called: the second one runs instead."""
    model = Blocks((0, 1, 1, 3))
    return two_training_steps(model, classify(model))


@fault("never-ran", "blocks.2")
def one_block_of_four_skipped() -> Setup:
    model = Blocks((0, 1, 3))
    batch = classify(model)
    return model, lambda: run_steps(map(batch, range(4)), adamw(model))


@fault("missing-residual", "blocks.1")
def one_block_without_residual() -> Setup:
    model = Blocks((0, 1, 2), without_residual=1)
    return two_training_steps(model, classify(model))


@fault("missing-residual", "blocks.3")
def feed_forward_without_residual_in_the_last_block() -> Setup:
    model: Any = Decoder(depth=4)
    block = model.blocks[3]

    class Short(type(block)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Any:
            return self.feed(self.norm2(x + self.attention(self.norm1(x))))

    Short.__name__ = "Block"
    block.__class__ = Short
    return two_training_steps(model, predict_next(model))


@fault("differs-from-peers", "blocks.2")
def other_number_of_heads() -> Setup:
    model: Any = Decoder(depth=4)
    model.blocks[2].attention.heads = 8
    return two_training_steps(model, predict_next(model))


@fault("differs-from-peers", "blocks.1")
def other_eps() -> Setup:
    model: Any = Decoder(depth=4)
    model.blocks[1].norm2.eps = 1e-2
    return two_training_steps(model, predict_next(model))


@fault("linear-layers-in-a-row", "0")
def no_activation_at_all() -> Setup:
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 4))
    return two_training_steps(model, classify(model))


@fault("linear-layers-in-a-row", "2")
def convolutions_in_a_row() -> Setup:
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 4))
    return two_training_steps(model, lambda i: classify(model, images)(i))


@fault("shared-parameters", "2")
def list_times_four() -> Setup:
    block = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Sequential(*[block] * 4), nn.Linear(32, 4))
    return two_training_steps(model, classify(model))


@fault("shared-parameters", "4")
def weight_without_bias_tied() -> Setup:
    model: Any = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    model[4].weight = model[2].weight
    return two_training_steps(model, classify(model))


@fault("dropout-too-large", "2")
def dropout_keeps_a_tenth() -> Setup:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.9), nn.Linear(64, 4))
    return two_training_steps(model, classify(model))


class FunctionalDropout(nn.Module):
    """p is the probability of keeping a value."""

    def __init__(self, p: float, on_logits: bool) -> None:
        super().__init__()
        self.first, self.second, self.p, self.on_logits = nn.Linear(16, 64), nn.Linear(64, 4), p, on_logits

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if self.on_logits:
            return F.dropout(self.second(x), self.p, self.training)
        y: Tensor = self.second(F.dropout(x, self.p, self.training))
        return y


@fault("dropout-too-large", "")
def functional_dropout_keeps_a_tenth() -> Setup:
    model = FunctionalDropout(0.9, on_logits=False)
    return two_training_steps(model, classify(model))


@fault("dropout-on-logits", "")
def functional_dropout_of_logits() -> Setup:
    model = FunctionalDropout(0.3, on_logits=True)
    return two_training_steps(model, classify(model))


@fault("dropout-on-logits", "3")
def dropout_after_each_layer() -> Setup:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4), nn.Dropout(0.2))
    return two_training_steps(model, classify(model))
