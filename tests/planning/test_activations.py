"""Bytes kept for the backward pass: those counted on fake tensors are those of a real pass."""

from contextlib import nullcontext

import pytest
import torch

from normscope.models.gpt import GPT
from normscope.models.presets import preset
from normscope.ops import linear_cross_entropy
from normscope.ops.kernel_mode import use_kernels
from normscope.planning.activations import Kept, Kernels, kept_bytes
from normscope.planning.gpus import MatmulDtype
from normscope.training.config import TrainConfig
from tests.pairs import every_pair
from tests.planning.measured import kept_besides, run_and_keep
from tests.support import random_tokens, safe_bfloat16

TRAIN = TrainConfig(steps=1, batch=1)
SIZES = {
    "small": {"depth": 2, "width": 64, "heads": 2, "context": 32, "vocab_size": 100},
    "longer-than-a-window": {"depth": 4, "width": 48, "heads": 3, "context": 160, "vocab_size": 300},
    "many-logits": {"depth": 1, "width": 32, "heads": 1, "context": 129, "vocab_size": 3001},
}
MANY_LOGITS = 10**6


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cross_entropy, "LARGE", MANY_LOGITS)
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", MANY_LOGITS // 4)


@every_pair(
    name=["gpt2", "llama", "nanochat", "nanochat-2026-07"],
    size=SIZES,
    kernels=["fused", "torch"],
    dtype=["float32", "bfloat16"],
)
def test_fake_tensors_tell_what_a_forward_pass_keeps(
    name: str, size: dict[str, int], kernels: Kernels, dtype: MatmulDtype
) -> None:
    config, windows = preset(name, **size), 3
    model, tokens = GPT(config).train(), random_tokens(config.vocab_size, windows, config.context)
    choice = use_kernels("torch") if kernels == "torch" else nullcontext()
    half = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    with choice, safe_bfloat16(), half:
        loss, kept = run_and_keep(lambda: model.loss(tokens, tokens))
    found = kept_bytes(config, TRAIN, windows, dtype, kernels)
    assert found.copies + found.activations == pytest.approx(kept_besides(kept, model), rel=0.02)
    assert loss.requires_grad


def test_copies_are_those_of_the_weights_that_are_multiplied() -> None:
    config = preset("gpt2", **SIZES["small"])
    multiplied = 2 * 12 * 64**2 + 100 * 64  # blocks and head
    biases = 2 * (4 * 64 + 4 * 64 + 64)
    copies = kept_bytes(config, TRAIN, 2, "bfloat16").copies
    assert 2 * multiplied <= copies <= 2 * (multiplied + biases)
    assert kept_bytes(config, TRAIN, 2, "float32").copies < 1000  # ids of positions


def test_activations_grow_with_the_windows_and_copies_do_not() -> None:
    config = preset("llama", **SIZES["many-logits"])
    assert 3 * 129 * 3001 > MANY_LOGITS > 129 * 3001
    one, four = (kept_bytes(config, TRAIN, windows, "bfloat16") for windows in (3, 12))
    assert four.activations == pytest.approx(4 * one.activations, rel=0.01)
    assert four.copies == pytest.approx(one.copies, rel=0.01)


def test_a_model_larger_than_this_machine_is_counted() -> None:
    config = preset("llama", depth=1, width=2**18, heads=2**11, context=16)
    assert config.parameter_count() > 2**39
    kept = kept_bytes(config, TRAIN, 1, "bfloat16")
    assert kept.copies > 2 * 2**39
    assert isinstance(kept, Kept)
