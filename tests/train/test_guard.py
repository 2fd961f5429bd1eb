"""The guard names the module that made the first number that is not finite, and can show it again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import CheckpointError
from normscope.models.gpt import GPT
from normscope.models.presets import gpt2, nanochat
from normscope.train.guard import Fault, find_fault, replay, save_bundle
from tests.support import random_tokens, scramble

TOKENS = random_tokens(11, 2, 8)


def new_model(**settings: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(gpt2(vocab_size=11, context=8, depth=3, width=16, heads=2, **settings))
    scramble(model)
    return model


def set_weight(parameter: nn.Parameter, value: float) -> None:
    with torch.no_grad():
        parameter.view(-1)[3] = value


def test_a_healthy_model_has_no_fault_and_is_left_alone() -> None:
    model = new_model()
    assert find_fault(model, TOKENS, TOKENS) is None
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_a_bad_weight_is_named() -> None:
    model = new_model()
    set_weight(model.get_parameter("blocks.1.mlp.up.weight"), float("nan"))
    assert find_fault(model, TOKENS, TOKENS) == Fault("blocks.1.mlp.up.weight", "weights", "nan")


def test_an_overflow_on_the_way_forward_is_named() -> None:
    model = new_model()
    with torch.no_grad():
        model.get_parameter("blocks.2.attention.v.weight").fill_(3e38)
    fault = find_fault(model, TOKENS, TOKENS)
    assert fault is not None
    assert (fault.where, fault.when) == ("blocks.2.attention.v", "forward")
    assert "its output is not finite, though its input is" in str(fault)


class _Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 0


class ExplodingBackward(nn.Module):
    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        result: torch.Tensor = _Explodes.apply(x)  # type: ignore[no-untyped-call]
        return result


def test_an_overflow_on_the_way_back_is_named() -> None:
    model = new_model()
    model.blocks[1].mlp = ExplodingBackward()
    fault = find_fault(model, TOKENS, TOKENS)
    assert fault is not None
    assert (fault.where, fault.when) == ("blocks.1.mlp", "backward")


@pytest.mark.parametrize("make", [gpt2, nanochat])
def test_a_bundle_shows_the_fault_again(tmp_path: Path, make: Callable[..., Any]) -> None:
    model = GPT(make(vocab_size=11, context=8, depth=2, width=16, heads=2, dropout=0.3))
    scramble(model)
    with torch.no_grad():
        model.get_parameter("blocks.1.attention.out.weight").fill_(3e38)
    found = find_fault(model, TOKENS, TOKENS)
    save_bundle(tmp_path / "00000003", model, TOKENS, TOKENS, {"error": "the loss is nan"})
    again, facts = replay(tmp_path / "00000003")
    assert found == again
    assert found is not None
    assert facts["error"] == "the loss is nan"


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    save_bundle(tmp_path / "x", new_model(), TOKENS, TOKENS, {})
    (tmp_path / "x" / "batch.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"batch\.safetensors was cut short"):
        replay(tmp_path / "x")
