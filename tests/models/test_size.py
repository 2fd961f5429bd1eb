"""Parameter counts match the built models; models that are too large are refused before they are built."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import CacheError, ConfigError
from normscope.models import gpt, size
from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.encoder import Encoder, EncoderConfig
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, gpt2, llama, nanochat, preset
from normscope.models.vit import ViT, ViTConfig

SIZES: dict[str, Any] = {"vocab_size": 37, "context": 12, "depth": 3, "width": 24, "heads": 6}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"wiring": "post", "bias": True},
    {"wiring": "sandwich", "qk_norm": "layer", "norm": "layer"},
    {"wiring": "parallel", "hidden": 17, "activation": "geglu"},
    {"kv_heads": 2, "head_dim": 10, "qk_norm": "rms", "tied_head": True},
    {"norm": "group", "embedding_norm": True, "positions": "learned"},
    {"norm": None, "positions": "none", "activation": "swiglu", "bias": True},
    {"norm": "b s [d]", "wiring": "none"},
    {"smear": True, "embedding_mix": True},
    {"value_embeddings": True, "kv_heads": 2, "backout": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", PRESETS)
def test_the_parameter_count_of_a_gpt(name: str, settings: dict[str, Any]) -> None:
    config = preset(name, **{**SIZES, **settings})
    model = GPT(config)
    assert config.parameter_count() == model.parameter_count()
    tables = {buffer.data_ptr(): buffer.numel() for key, buffer in model.named_buffers() if "rotary" in key}
    assert config.buffer_count() == sum(tables.values())


def test_the_parameter_counts_of_other_models() -> None:
    sizes: dict[str, Any] = {"width": 24, "heads": 6, "depth": 2}

    encoder = EncoderConfig(vocab_size=11, context=7, **sizes)
    vit = ViTConfig(image_size=8, patch=2, channels=1, **sizes)
    convnet = ConvNetConfig(image_size=8, widths=(4, 6), norm="n [c h w]")
    made: list[tuple[Any, nn.Module]] = [(encoder, Encoder(encoder)), (vit, ViT(vit)), (convnet, ConvNet(convnet))]
    for config, model in made:
        assert config.parameter_count() == sum(parameter.numel() for parameter in model.parameters())


ABSURD: list[Callable[[], Any]] = [
    lambda: nanochat(depth=10**9),
    lambda: gpt2(depth=99_999, width=8, heads=1, vocab_size=8, context=8),
    lambda: llama(width=2**50, heads=2**20),
    lambda: gpt2(vocab_size=2**52),
    lambda: gpt2(context=2**52),
    lambda: nanochat(context=2**50),
    lambda: llama(hidden=2**50),
    lambda: llama(heads=2**53, width=2**53, head_dim=2),
]


@pytest.mark.parametrize("number", range(len(ABSURD)))
def test_a_gpt_that_is_too_large_is_refused_before_it_is_built(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        raise AssertionError("something was built")

    config = ABSURD[number]()
    monkeypatch.setattr(gpt, "Embedding", built)
    with pytest.raises(ConfigError, match=r"too large: depth=.* parameters \(.*(free|can be built)\nfix: reduce depth"):
        GPT(config)


def test_on_the_meta_device_only_depth_and_overflow_count() -> None:
    with torch.device("meta"):
        GPT(gpt2(vocab_size=2**40))
        with pytest.raises(ConfigError, match="at most 4,096 blocks can be built"):
            GPT(nanochat(depth=5000, width=8, heads=1))
        with pytest.raises(ConfigError, match=r"no tensor can have more than 1\.15 E"):
            GPT(gpt2(vocab_size=2**52))


def test_free_memory_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = nanochat(**SIZES)
    needed = 4 * (config.parameter_count() + config.buffer_count())
    monkeypatch.setattr(size, "available_memory", lambda: needed)
    GPT(config)
    monkeypatch.setattr(size, "available_memory", lambda: needed - 1)
    with pytest.raises(ConfigError, match="too large"):
        GPT(config)
    monkeypatch.setattr(size, "available_memory", lambda: None)
    GPT(config)


def test_a_cache_that_is_too_large_is_refused() -> None:
    with pytest.raises(CacheError, match=r"takes .* EB, but .* are free\nfix: use fewer sequences"):
        GPT(nanochat(**SIZES)).new_cache(batch=2**50)


@pytest.mark.parametrize("heads", [1, 2, 7, 12, 22, 142])
def test_about_three_heads_of_a_llama_share_a_kv_head(heads: int) -> None:
    shared = next(kv for kv in range(max(1, heads // 3), 0, -1) if heads % kv == 0)
    assert llama(heads=heads, width=4 * heads).kv_heads == shared
