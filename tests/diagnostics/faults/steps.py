"""Steps that are too large or too small, weights that no optimiser has, losses worse than guessing."""

import copy
from typing import Any

import torch
from torch import nn

from tests.diagnostics.cases import Scene, adam, fault, running, steps
from tests.diagnostics.networks import Decoder, LongShort, StateSpaceModel, convnet, mlp
from tests.diagnostics.tasks import classify, images, predict


@fault("update-too-large", "", ["loss-above-chance", "exploded-weights"])
def rate_of_one() -> Scene:
    """After the first such step the weights are huge, and so are the logits and the second loss."""
    model: Any = mlp(16, 64, 64, 4)
    return running(model, classify(model), lr=1.0)


@fault("update-too-large", "head")
def rate_of_the_head_far_too_high() -> Scene:
    model: Any = StateSpaceModel(depth=2)
    groups = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith("head")], "lr": 1e-3},
        {"params": model.head.parameters(), "lr": 1.0},
    ]
    optimiser = torch.optim.Adam(groups)
    return model, lambda: steps([predict(model)(0)], optimiser)


@fault("update-too-small", "")
def rate_of_a_billionth() -> Scene:
    model: Any = convnet()
    return running(model, classify(model, images), lr=1e-10)


@fault("update-too-small", "")
def eps_of_adam_larger_than_the_gradients() -> Scene:
    model: Any = Decoder(depth=2)
    optimiser, batch = adam(model), predict(model)
    for group in optimiser.param_groups:
        group["weight_decay"] = 0.0
    return model, lambda: steps([lambda: 1e-14 * batch(0)()], optimiser)


@fault("update-too-small", "lstm")
def rate_of_one_part_a_millionth() -> Scene:
    model: Any = LongShort()
    groups = [
        {"params": model.lstm.parameters(), "lr": 1e-9},
        {"params": [*model.tokens.parameters(), *model.head.parameters()], "lr": 1e-3},
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    return model, lambda: steps([predict(model)(0)], optimiser)


@fault("not-in-optimizer", "")
def optimiser_of_an_older_copy() -> Scene:
    model: Any = mlp(16, 64, 4)
    optimiser = adam(copy.deepcopy(model))
    return model, lambda: steps([classify(model)(0)], optimiser)


@fault("not-in-optimizer", "head")
def head_added_after_the_optimiser_was_made() -> Scene:
    model: Any = Decoder(depth=2)
    optimiser = adam(model)
    model.head = nn.Linear(32, 16)
    return model, lambda: steps([predict(model)(0), predict(model)(1)], optimiser)


@fault("not-in-optimizer", "blocks.1.enter")
def part_left_out_of_the_optimiser() -> Scene:
    model: Any = StateSpaceModel(depth=2)
    some = [parameter for name, parameter in model.named_parameters() if not name.startswith("blocks.1.enter")]
    optimiser = torch.optim.SGD(some, lr=0.1)
    return model, lambda: steps([predict(model)(0)], optimiser)


@fault("loss-above-chance", "head")
def head_tied_to_an_embedding_of_size_one() -> Scene:
    model: Any = Decoder(vocabulary=64, width=64)
    model.head.weight = model.tokens.weight
    return running(model, predict(model))


@fault("loss-above-chance", "11", ["abnormal-gain"])
def last_layer_a_hundred_times_too_large() -> Scene:
    """Its gain is off by as much."""
    model: Any = convnet()
    with torch.no_grad():
        model[-1].weight.mul_(200.0)
    model = nn.Sequential(*(layer for layer in model if not isinstance(layer, nn.MaxPool2d)))
    return running(model, classify(model, images))


@fault("update-too-large", "")
def decay_that_wipes_the_weights_out() -> Scene:
    """A rate of 0.1 with a decay of 9.9: a hundredth is left of each weight."""
    model: Any = mlp(16, 64, 64, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=9.9)
    return model, lambda: steps([classify(model)(0)], optimiser)
