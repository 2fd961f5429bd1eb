"""The signal per layer: against hooks of the test's own, and the model is left as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, gpt2, preset
from normscope.train.layer_signal import layer_signal
from tests.support import random_tokens, scramble

SIZES: dict[str, Any] = {"vocab_size": 11, "context": 8, "depth": 2, "width": 16, "heads": 2}
TOKENS = random_tokens(11, 3, 9)
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def test_it_is_the_root_mean_square_there() -> None:
    model = GPT(gpt2(**SIZES)).double().eval()
    scramble(model)
    found = {layer["name"]: layer for layer in layer_signal(model, INPUTS, TARGETS)}
    # The stream by hand: embedding, positions, block by block.
    table = model.embedding(INPUTS)
    assert model.position is not None
    stream = [table, model.blocks[0](table + model.position(torch.arange(8)))]
    stream.append(model.blocks[1](stream[-1]))
    stream.append(model.final_norm(stream[-1]))
    logits = stream[-1] @ model.embedding.weight.T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten())
    gradients = torch.autograd.grad(loss, stream)
    assert list(found) == ["embedding", "blocks.0", "blocks.1", "final_norm"]
    for layer, value, gradient in zip(found.values(), stream, gradients, strict=True):
        assert layer["rms"] == pytest.approx(_rms(value), rel=1e-5)
        assert layer["gradient_rms"] == pytest.approx(_rms(gradient), rel=1e-5)


def _rms(tensor: Tensor) -> float:
    return tensor.square().mean().sqrt().item()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("wiring", ["pre", "post", "sandwich", "parallel", "single", "none"])
def test_every_model_has_one(name: str, wiring: str) -> None:
    model = GPT(preset(name, **SIZES, wiring=wiring))
    scramble(model, scale=0.1)
    layers = layer_signal(model, INPUTS, TARGETS)
    assert [layer["name"] for layer in layers] == ["embedding", "blocks.0", "blocks.1", "final_norm"]
    assert all(layer["rms"] > 0 and layer["gradient_rms"] > 0 for layer in layers)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = GPT(gpt2(**SIZES, dropout=0.5)).train(training)
    weights = [weight.clone() for weight in model.parameters()]
    before = torch.get_rng_state()
    assert layer_signal(model, INPUTS, TARGETS) == layer_signal(model, INPUTS, TARGETS)  # no dropout
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.modules())
