"""Updates that are too large or too small, weights in no optimizer, losses worse than guessing."""

import copy
from typing import Any

import torch
from torch import nn

from tests.diagnostics.cases import Setup, adamw, fault, run_steps, two_training_steps
from tests.diagnostics.networks import Decoder, LSTMModel, StateSpaceModel, convnet, mlp
from tests.diagnostics.tasks import classify, images, predict_next


@fault("update-too-large", "", ["loss-above-chance", "exploded-weights"])
def lr_of_1() -> Setup:
    """After the first step the weights are huge, and so are the logits and the second loss."""
    model: Any = mlp(16, 64, 64, 4)
    return two_training_steps(model, classify(model), lr=1.0)


@fault("update-too-large", "head")
def head_lr_too_high() -> Setup:
    model: Any = StateSpaceModel(depth=2)
    groups = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith("head")], "lr": 1e-3},
        {"params": model.head.parameters(), "lr": 1.0},
    ]
    optimizer = torch.optim.Adam(groups)
    return model, lambda: run_steps([predict_next(model)(0)], optimizer)


@fault("update-too-small", "")
def lr_too_small() -> Setup:
    model: Any = convnet()
    return two_training_steps(model, classify(model, images), lr=1e-10)


@fault("update-too-small", "", ["optimizer-eps-dominates"])
def adam_eps_above_gradients() -> Setup:
    model: Any = Decoder(depth=2)
    optimizer, batch = adamw(model), predict_next(model)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    return model, lambda: run_steps([lambda: 1e-14 * batch(0)()], optimizer)


@fault("update-too-small", "lstm")
def lstm_lr_too_small() -> Setup:
    model: Any = LSTMModel()
    groups = [
        {"params": model.lstm.parameters(), "lr": 1e-9},
        {"params": [*model.tokens.parameters(), *model.head.parameters()], "lr": 1e-3},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    return model, lambda: run_steps([predict_next(model)(0)], optimizer)


@fault("not-in-optimizer", "")
def optimizer_of_model_copy() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = adamw(copy.deepcopy(model))
    return model, lambda: run_steps([classify(model)(0)], optimizer)


@fault("not-in-optimizer", "head")
def head_replaced_after_optimizer_created() -> Setup:
    model: Any = Decoder(depth=2)
    optimizer = adamw(model)
    model.head = nn.Linear(32, 16)
    return model, lambda: run_steps([predict_next(model)(0), predict_next(model)(1)], optimizer)


@fault("not-in-optimizer", "blocks.1.enter")
def layer_missing_from_optimizer() -> Setup:
    model: Any = StateSpaceModel(depth=2)
    included = [parameter for name, parameter in model.named_parameters() if not name.startswith("blocks.1.enter")]
    optimizer = torch.optim.SGD(included, lr=0.1)
    return model, lambda: run_steps([predict_next(model)(0)], optimizer)


@fault("loss-above-chance", "head")
def head_tied_to_unit_std_embedding() -> Setup:
    model: Any = Decoder(vocab_size=64, width=64)
    model.head.weight = model.tokens.weight
    return two_training_steps(model, predict_next(model))


@fault("loss-above-chance", "11", ["abnormal-gain"])
def output_layer_too_large() -> Setup:
    """The gain of the layer is abnormal too."""
    model: Any = convnet()
    with torch.no_grad():
        model[-1].weight.mul_(200.0)
    model = nn.Sequential(*(layer for layer in model if not isinstance(layer, nn.MaxPool2d)))
    return two_training_steps(model, classify(model, images))


@fault("update-too-large", "", ["weight-decay-dominates"])
def weight_decay_too_large() -> Setup:
    """lr 0.1 with weight decay 9.9: one step shrinks each weight to a hundredth."""
    model: Any = mlp(16, 64, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=9.9)
    return model, lambda: run_steps([classify(model)(0)], optimizer)
