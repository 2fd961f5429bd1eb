"""The fused decoder matches the model, in every weight format, with the same bits in any batch."""

import copy
import dataclasses
from typing import Any, get_args

import numpy as np
import pytest
import torch

from normscope.blocks.linear import Linear
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.errors import CacheError
from normscope.generate import decoder
from normscope.generate.config import GenerationConfig, WeightFormat
from normscope.generate.decoder import Decoder
from normscope.generate.decoder_support import KERNEL_ACTIVATIONS
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from tests.generate.decoding import decoded, known_layout, relative_error, texts_of, whole_passes
from tests.generate.writers import FUSED, VOCABULARY, writer
from tests.pairs import every_value

FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
every_preset = pytest.mark.parametrize("name", FUSED)
every_format = pytest.mark.parametrize("weights", FORMATS)

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "window-1": ("llama", {"window": 1}),
    "window-4": ("nanochat", {"window": 4}),
    "window-wide": ("gpt2", {"window": 99}),
    "grouped": ("llama", {"width": 24, "heads": 6, "kv_heads": 2}),
    "one-for-all": ("gpt2", {"heads": 4, "kv_heads": 1}),
    "grouped-and-normed": ("nanochat", {"width": 24, "heads": 6, "kv_heads": 3, "qk_norm": "rms"}),
    "qk-rms": ("gpt2", {"qk_norm": "rms"}),
    "qk-layer": ("llama", {"qk_norm": "layer"}),
    "qk-rms-bias": ("llama", {"qk_norm": NormSpec("b s h [e]", statistic="rms", affine="e", eps=0.1)}),
    "qk-plain": ("gpt2", {"qk_norm": "b s h [e]"}),
    "learned": ("llama", {"positions": "learned"}),
    "rotary": ("gpt2", {"positions": "rotary", "rotary_base": 100.0}),
    "nowhere": ("nanochat", {"positions": "none"}),
    "tied": ("llama", {"tied_head": True}),
    "untied": ("gpt2", {"tied_head": False}),
    "capped": ("llama", {"logit_cap": 2.0}),
    "uncapped": ("nanochat", {"logit_cap": None}),
    "embedding-layer": ("gpt2", {"embedding_norm": True}),
    "embedding-rms": ("llama", {"embedding_norm": True}),
    "rms-bias": ("llama", {"norm": NormSpec("b s [d]", statistic="rms", eps=0.5)}),
    "layer-plain": ("llama", {"norm": "... [d]"}),
    "bias": ("llama", {"bias": True}),
    "no-bias": ("gpt2", {"bias": False}),
    "odd": ("gpt2", {"width": 15, "heads": 3, "hidden": 33}),
    "odd-gated": ("llama", {"width": 7, "heads": 1, "head_dim": 6, "hidden": 19}),
    "large-heads": ("llama", {"head_dim": 10}),
    "small": ("gpt2", {"width": 1, "heads": 1, "hidden": 1, "norm": "rms"}),
    "wide": ("nanochat", {"width": 96, "heads": 3, "hidden": 200, "depth": 1}),
    "one-head": ("nanochat", {"heads": 1}),
    "deep": ("gpt2", {"depth": 5}),
    **{name: ("gpt2", {"activation": name}) for name in KERNEL_ACTIVATIONS},
}


@every_preset
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_presets_match_the_model(name: str, rows: int) -> None:
    model, texts = writer(name, torch.float32), texts_of([2, 16, 5, 9, 3, 3, 12, 7][:rows], VOCABULARY)
    assert relative_error(decoded(model, texts), whole_passes(model, texts)) < 1e-6


@pytest.mark.parametrize("setting", SETTINGS)
def test_configs_match_the_model(setting: str) -> None:
    name, options = SETTINGS[setting]
    model, texts = writer(name, torch.float32, **options), texts_of([14, 2, 7], VOCABULARY)
    assert relative_error(decoded(model, texts), whole_passes(model, texts)) < 1e-6


def large(name: str) -> GPT:
    """Large enough for its products to be shared among threads, and its attention for several rows, but not for one."""
    sizes = {"width": 96, "heads": 6, "head_dim": 64, "hidden": 350, "depth": 1, "vocab_size": 353, "context": 40}
    return writer(name, torch.float32, **sizes, logit_cap=3.0)


@every_format
@every_preset
def test_rows_are_bitwise_equal_in_any_batch_and_with_any_number_of_threads(name: str, weights: WeightFormat) -> None:
    model, texts = large(name), texts_of([38, 3, 40, 14], 353)
    beside = decoded(model, texts, weights)
    assert decoded(model, texts, weights, threads=2).tobytes() == beside.tobytes()
    for i, threads in ((1, 1), (2, 1), (2, 2)):
        assert decoded(model, texts[i : i + 1], weights, threads=threads)[:, 0].tobytes() == beside[:, i].tobytes()
    assert decoded(model, [texts[3], texts[1]], weights)[:, 0].tobytes() == beside[:, 3].tobytes()


@torch.no_grad()
def rounded(model: GPT, weights: WeightFormat) -> GPT:
    """A model whose matrices are rounded as the format says; its table of tokens is not."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, Linear) and weights == "bfloat16":
            module.weight.copy_(module.weight.bfloat16())
        elif isinstance(module, Linear):
            step = module.weight.abs().amax(dim=1, keepdim=True) / 127
            module.weight.copy_((module.weight / step).round() * step)
    return other


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("setting", ["llama", "untied", "odd-gated", "small", "wide", "qk-layer", "bias"])
def test_rounded_weights_match_a_rounded_model(setting: str, weights: WeightFormat) -> None:
    """Odd rows and rows of one number too; and what rounding costs is bounded."""
    name, options = SETTINGS.get(setting, (setting, {}))
    model, texts = writer(name, torch.float32, **{**options, "tied_head": False}), texts_of([14, 2, 7], VOCABULARY)
    found = decoded(model, texts, weights)
    assert relative_error(found, whole_passes(rounded(model, weights), texts)) < 1e-6
    assert 0 < relative_error(found, whole_passes(model, texts)) < {"bfloat16": 0.02, "int8": 0.04}[weights]


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_a_tied_embedding_is_rounded_as_the_head_only(weights: WeightFormat) -> None:
    model = writer("gpt2", torch.float32)
    untied = GPT(dataclasses.replace(model.config, tied_head=False))
    untied.load_state_dict({**model.state_dict(), "head.weight": model.embedding.weight})
    texts = texts_of([9, 4], VOCABULARY)
    np.testing.assert_array_equal(decoded(model, texts, weights), decoded(untied, texts, weights))


@every_value(name=FUSED, weights=["bfloat16", "int8"])
def test_rounded_weights_do_not_depend_on_the_batch(name: str, weights: WeightFormat) -> None:
    model, prompts = writer(name, torch.float32), texts_of([1, 30, 5, 16], VOCABULARY)
    together = generate_tokens(model, prompts, max_new_tokens=24, weights=weights)
    for prompt, text in zip(prompts, together, strict=True):
        assert generate_tokens(model, [prompt], max_new_tokens=24, weights=weights)[0].tokens == text.tokens
    assert decoder._layouts[model].weights == weights


def test_a_trained_model_generates_the_same_in_every_weight_format() -> None:
    """Count by threes: from any number on."""
    model = writer("llama", torch.float32, width=32, heads=2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    numbers = (torch.arange(VOCABULARY)[:, None] + 3 * torch.arange(13)) % VOCABULARY
    for _ in range(40):
        optimiser.zero_grad()
        model.loss(numbers[:, :-1], numbers[:, 1:]).backward()
        optimiser.step()
    prompts, sampling = [[5, 8], [20, 23, 26, 0], [1]], GenerationConfig(temperature=0)
    for weights in FORMATS:
        found = generate_tokens(model, prompts, max_new_tokens=12, config=sampling, weights=weights)
        for prompt, text in zip(prompts, found, strict=True):
            wanted = [(prompt[-1] + 3 * i) % VOCABULARY for i in range(1, 13)]
            assert sum(map(int.__eq__, text.tokens, wanted)) >= 11


def test_dropout_is_off_in_train_mode() -> None:
    model, texts = writer("gpt2", torch.float32, dropout=0.5).train(), texts_of([6, 3], VOCABULARY)
    assert relative_error(decoded(model, texts), whole_passes(model, texts)) < 1e-6
    assert model.training


def test_a_full_cache_raises() -> None:
    model = writer("llama", torch.float32)
    reading = Decoder(known_layout(model), cache := model.new_cache(2, capacity=3))
    for _ in range(3):
        reading.advance([1, 2])
    with pytest.raises(CacheError, match="capacity 3 tokens"):
        reading.advance([1, 2])
    assert cache.lengths == (3, 3)


@every_preset
@pytest.mark.parametrize("place", ["mlp", "attention", "norm"])
def test_nan_and_inf_propagate_to_the_logits(name: str, place: str) -> None:
    model, texts = writer(name, torch.float32, norm="rms"), texts_of([5], VOCABULARY)
    block: Any = model.blocks[0]
    weight = {"mlp": block.mlp.up, "attention": block.attention.v, "norm": block.norms[1]}[place].weight
    with torch.no_grad():
        weight[1] = torch.inf if place == "mlp" else torch.nan
    assert np.isnan(whole_passes(model, texts)).all()
    assert np.isnan(decoded(model, texts)).all()
