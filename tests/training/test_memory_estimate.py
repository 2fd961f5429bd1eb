"""The memory estimate is a lower bound, and only runs that cannot fit are errors."""

import pytest
import torch

from normscope.errors import ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import nanochat
from normscope.training import memory_estimate as needs
from normscope.training.config import TrainConfig
from normscope.training.memory_estimate import check_memory, weights_memory, window_memory

MODEL = nanochat(vocab_size=100, context=32, depth=2, width=64, heads=2)
TRAIN = TrainConfig(steps=1, batch=8)
NEEDED = weights_memory(MODEL, TRAIN) + 8 * window_memory(MODEL, TRAIN)


def test_weights_are_counted_without_allocating() -> None:
    rotary = 32 * (64 // 2)  # two tables of cosines and sines, each for half of a head
    assert weights_memory(MODEL, TRAIN) == 4 * (3 * GPT(MODEL).parameter_count() + rotary)
    assert weights_memory(nanochat(width=10**13, heads=1), TRAIN) > 10**18


def test_adapters_need_gradients_and_the_frozen_weights_do_not() -> None:
    lora = TrainConfig(steps=1, batch=8, lora=4)
    adapters = 2 * 4 * (4 * (64 + 64) + 2 * (64 + 256))
    assert needs.trained_parameters(MODEL, lora) == adapters
    assert weights_memory(MODEL, lora) == 4 * (GPT(MODEL).parameter_count() + 2 * adapters + 32 * 32)


def test_the_estimate_is_below_what_autograd_keeps() -> None:
    """What a pass forward keeps for the way back, counted tensor by tensor."""
    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model, tokens = GPT(MODEL), torch.zeros(8, 32, dtype=torch.long)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = model.loss(tokens, tokens)  # alive to the end, or the places would be used again
    size = sum(bytes_ for place, bytes_ in kept.items() if place not in weights)
    least = 8 * window_memory(MODEL, TRAIN)
    assert least < size < 3 * least
    assert loss.requires_grad


@pytest.mark.parametrize(
    ("free", "settings", "fix"),
    [
        (NEEDED, {}, None),
        (None, {}, None),
        (NEEDED - 1, {"micro_batch": 4}, None),
        (NEEDED - 1, {}, "--micro-batch 3 or less, which gives the same result"),
        (NEEDED - 1, {"micro_batch": 99}, "--micro-batch 3 or less"),
        (weights_memory(MODEL, TRAIN), {}, "a smaller --depth, --width or --context"),
    ],
)
def test_only_runs_that_cannot_fit_are_errors(
    free: int | None, settings: dict[str, int], fix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "available_memory", lambda: free)
    config = TrainConfig(steps=1, batch=8, device="cpu", micro_batch=settings.get("micro_batch"))
    if fix is None:
        check_memory(MODEL, config)
    else:
        with pytest.raises(ConfigError, match=f"not enough memory: .*\nfix: {fix}"):
            check_memory(MODEL, config)


def test_impossible_sizes_are_errors_without_allocating(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(GPT, "__init__", built)
    train = TrainConfig(steps=1, batch=8, device="cpu")
    with pytest.raises(
        ConfigError, match=r"not enough memory: .* of 12\.\d E parameters need .* EB, activations of 8 windows"
    ):
        check_memory(nanochat(depth=99_999, width=32 * 99_999, heads=99_999, context=64), train)
    monkeypatch.setattr(needs, "available_memory", lambda: None)
    with pytest.raises(ConfigError, match=r"too large: depth=99999 "):
        check_memory(nanochat(depth=99_999, width=8, heads=1), train)
