"""The guard names the module that made the first number that is not finite, and can show it again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import CheckpointError, ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import gpt2, nanochat
from normscope.runtime import precision
from normscope.training.nan_guard import NonFiniteOrigin, find_nonfinite, replay, save_nan_bundle
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
    assert find_nonfinite(model, TOKENS, TOKENS) is None
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_a_bad_weight_is_named() -> None:
    model = new_model()
    set_weight(model.get_parameter("blocks.1.mlp.up.weight"), float("nan"))
    assert find_nonfinite(model, TOKENS, TOKENS) == NonFiniteOrigin("blocks.1.mlp.up.weight", "weights", "nan")


def test_an_overflow_on_the_way_forward_is_named() -> None:
    model = new_model()
    with torch.no_grad():
        model.get_parameter("blocks.2.attention.v.weight").fill_(3e38)
    fault = find_nonfinite(model, TOKENS, TOKENS)
    assert fault is not None
    assert (fault.where, fault.when) == ("blocks.2.attention.v", "forward")
    assert "output is not finite, although the input is finite" in str(fault)


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
    fault = find_nonfinite(model, TOKENS, TOKENS)
    assert fault is not None
    assert (fault.where, fault.when) == ("blocks.1.mlp", "backward")


@pytest.mark.parametrize("make", [gpt2, nanochat])
def test_a_bundle_shows_the_fault_again(tmp_path: Path, make: Callable[..., Any]) -> None:
    model = GPT(make(vocab_size=11, context=8, depth=2, width=16, heads=2, dropout=0.3))
    scramble(model)
    with torch.no_grad():
        model.get_parameter("blocks.1.attention.out.weight").fill_(3e38)
    found = find_nonfinite(model, TOKENS, TOKENS)
    save_nan_bundle(tmp_path / "00000003", model, TOKENS, TOKENS, {"error": "the loss is nan"})
    again, facts = replay(tmp_path / "00000003")
    assert found == again
    assert found is not None
    assert facts["error"] == "the loss is nan"


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    save_nan_bundle(tmp_path / "x", new_model(), TOKENS, TOKENS, {"error": "nan"})
    (tmp_path / "x" / "batch.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"batch\.safetensors is damaged"):
        replay(tmp_path / "x")


@pytest.mark.parametrize(
    ("norm", "fault"),
    [("power", ("blocks.1.attention", "forward")), ("batch", ("blocks.0.norms.0.running_var", "statistics"))],
)
def test_norms_that_remember_are_left_as_they_were(norm: str, fault: tuple[str, str]) -> None:
    """So the same is found each time, and not what the time before has left in them."""
    model = new_model(norm=norm, allow_future_leak=True)
    with torch.no_grad():
        model.embedding.weight[TOKENS[0, 3]] = 1e25
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        found = find_nonfinite(model.train(), TOKENS, TOKENS)
        assert found is not None
        assert (found.where, found.when) == fault
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_bad_running_statistic_is_named() -> None:
    model = new_model(norm="power")
    model.get_buffer("blocks.1.norms.0.running_square")[2] = float("inf")
    assert find_nonfinite(model, TOKENS, TOKENS) == NonFiniteOrigin("blocks.1.norms.0.running_square", "weights", "inf")


def test_a_bundle_is_run_in_the_precision_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that float32 holds may be too much for bfloat16, and the other way round."""
    seen: list[bool] = []

    def loss(*_: object) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return torch.ones(())

    monkeypatch.setattr(GPT, "loss", loss)
    monkeypatch.setattr(precision, "probe_bfloat16", lambda: precision.BFloat16Probe(2.0, "twice as fast"))
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_: None)
    for name in ("float32", "bfloat16"):
        save_nan_bundle(tmp_path / name, new_model(), TOKENS, TOKENS, {"error": "", "device": "cpu", "precision": name})
        replay(tmp_path / name)
    replay(tmp_path / "bfloat16", precision="float32")
    assert seen == [False, True, False]
    save_nan_bundle(tmp_path / "far", new_model(), TOKENS, TOKENS, {"error": "", "device": "cuda:99"})
    with pytest.raises(ConfigError, match=r"device='cuda:99' cannot be used here: .*\nfix: device='cpu'"):
        replay(tmp_path / "far")
    replay(tmp_path / "far", device="cpu")
