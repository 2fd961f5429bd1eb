"""Every field of GPTConfig is honored or refused by the fused decoder.

A field that is added to the config fails here until it has a case below.
"""

import dataclasses
from typing import Any

import pytest

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.errors import ConfigError
from normscope.generate.decoder_support import KERNEL_ACTIVATIONS, can_decode
from normscope.models.gpt import GPT, GPTConfig
from tests.generate.decoding import decoded, relative_error, texts_of, whole_passes
from tests.support import scramble

SMALL: dict[str, Any] = {"vocab_size": 29, "context": 16, "width": 12, "heads": 2, "hidden": 20, "depth": 2}

CASES: dict[str, list[Any]] = {
    "vocab_size": [41],
    "context": [24],
    "width": [16],
    "heads": [3],
    "kv_heads": [1, 2],
    "head_dim": [4, 8],
    "hidden": [None, 33],
    "activation": [name for name in KERNEL_ACTIVATIONS if name != GPTConfig.activation],
    "norm": ["layer", "rms-plain", "group", "power", None, NormSpec("... [d]", statistic="rms", eps=0.1)],
    "wiring": [name for name in WIRINGS if name != "pre"],
    "qk_norm": ["rms", "layer", NormSpec("... [d]", statistic="rms", eps=0.1), "b s [h e]"],
    "window": [3],
    "window_pattern": ["SL", "LSS"],
    "attention_scale": [0.9],
    "attention_cap": [0.5],
    "causal": [],  # a GPT with causal=False cannot be built
    "bias": [True, "qkv", "attention", "mlp"],
    "dropout": [0.5],
    "init": ["gpt2", "nanochat", "nanochat-2026-07"],
    "depth": [1, 3],
    "allow_future_leak": [True],
    "positions": ["learned", "none"],
    "rotary_base": [100.0],
    "rotary_dim": [2, 4],
    "rotary_scaling": [
        RotaryScaling(kind="linear", factor=3.0),
        RotaryScaling(kind="llama3", factor=8.0, original_context=8),
        RotaryScaling(kind="longrope", factor=1.0, divisors=(1.0, 2.0, 3.0)),
        RotaryScaling(kind="yarn", factor=4.0, original_context=8, attention_factor=1.5),
    ],
    "rotary_pattern": ["RN", "N"],
    "local_rotary_base": [50.0],
    "embedding_scale": [1.7],
    "embedding_norm": [True],
    "smear": [True],
    "embedding_mix": [True],
    "value_embeddings": [True],
    "backout": [True],
    "tied_head": [True],
    "logit_cap": [0.7],
}
"""Non-default values of each field."""

REFUSED = {
    "smear",
    "embedding_mix",
    "value_embeddings",
    "backout",
    "wiring",
    "attention_cap",
    "norm=group",
    "norm=power",
    "norm=None",
    "qk_norm=b s [h e]",
}
"""Fields, or values, that the decoder does not support: can_decode must be False."""


def test_every_field_has_a_case() -> None:
    assert set(CASES) == {field.name for field in dataclasses.fields(GPTConfig)}


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(field, value, id=f"{field}={value}") for field, values in CASES.items() for value in values],
)
def test_the_decoder_honors_or_refuses_it(field: str, value: Any) -> None:
    needed = {"window": 3} if field in ("window_pattern", "local_rotary_base") else {}
    model = GPT(GPTConfig(**{**SMALL, **needed, field: value})).eval()
    assert getattr(model.config, field) != getattr(GPTConfig(**SMALL), field)
    scramble(model, scale=0.3)
    refused = field in REFUSED or f"{field}={value}" in REFUSED
    assert can_decode(model) != refused
    if not refused:
        texts = texts_of([13, 7], model.config.vocab_size)
        assert relative_error(decoded(model, texts), whole_passes(model, texts)) < 1e-5


def test_a_causal_model_is_the_only_kind() -> None:
    with pytest.raises(ConfigError, match="causal"):
        GPTConfig(**SMALL, causal=False)
