"""Configs round-trip through JSON, and invalid ones are refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.blocks.initialization import get_initialization
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.errors import ConfigError
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import PRESETS, nanochat, preset

SPECS: list[NormSpec | str | None] = [
    "layer",
    "rms",
    "group",
    "none",
    NormSpec("b s (g [d])", statistic="rms", affine="(g d)", sizes={"g": 4}),
    NormSpec("b s [d]", eps=1e-3, bias=False),
]


NORM = config_to_json(nanochat())["norm"]


def through_json(config: GPTConfig) -> GPTConfig:
    return config_from_json(json.loads(json.dumps(config_to_json(config), allow_nan=False)))


@given(
    name=st.sampled_from(sorted(PRESETS)),
    depth=st.integers(1, 5),
    heads=st.sampled_from([1, 2, 4]),
    norm=st.sampled_from(SPECS),
    wiring=st.sampled_from(sorted(WIRINGS)),
    layers=st.sampled_from([{}, {"window": 5}, {"window": 5, "window_pattern": "SSL", "local_rotary_base": 7.0}]),
    bias=st.sampled_from([True, False, "qkv", "attention", "mlp"]),
    scaling=st.sampled_from([None, RotaryScaling(kind="linear", factor=2), RotaryScaling(kind="llama3", factor=8.5)]),
    dropout=st.floats(0, 0.9),
)
def test_every_config_round_trips(name: str, heads: int, layers: Any, scaling: Any, **more: Any) -> None:
    more |= {"rotary_scaling": scaling, "rotary_pattern": "RRN", "attention_scale": 0.3, "attention_cap": 50.0}
    config = preset(name, heads=heads, width=32, context=16, **layers, **more)
    assert through_json(config) == config


def test_a_model_made_from_it_has_the_same_weights() -> None:
    config = preset("gpt2", vocab_size=11, context=8, depth=2, width=16, heads=2, norm=SPECS[4])
    names = {name: weight.shape for name, weight in GPT(config).named_parameters()}
    assert {name: weight.shape for name, weight in GPT(through_json(config)).named_parameters()} == names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"color": "red"}, "has the unknown setting 'color'\nfix: use the normscope that wrote it"),
        ({"depth": None}, "expected `int`, got `null` at `depth`"),
        ({"activation": ["relu"]}, "expected `str`, got `array` at `activation`"),
        ({"norm": {**NORM, "colour": "red"}}, "the norm's config has the unknown setting 'colour'"),
        ({"norm": {**NORM, "scope": "... [d"}}, "unclosed"),
        ({"norm": {**NORM, "sizes": 5}}, "got `int` at `norm.sizes`"),
        ({"bias": "all"}, "Invalid enum value 'all' - at `bias`|bias='all' must be|at `bias`"),
        ({"window_pattern": "SX"}, "must consist of the letters S and L"),
        ({"window_pattern": "SL"}, "window_pattern='SL' requires a window"),
        ({"rotary_pattern": ""}, "must consist of the letters R and N"),
        ({"rotary_scaling": "linear"}, "'rotary_scaling' of the model's config must be an object"),
        ({"rotary_scaling": {"kind": "linear", "factor": 2.0, "beta": 1}}, "has the unknown setting 'beta'"),
        ({"rotary_scaling": {"kind": "cubic", "factor": 2.0}}, "cubic"),
        ({"rotary_dim": 3}, "rotary_dim=3 must be even"),
        ({"qk_norm": "rms"}, "'qk_norm' of the model's config must be an object, but got 'rms'"),
    ],
)
def test_invalid_settings(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_from_json({**config_to_json(nanochat()), **change})


def test_a_missing_setting_is_named() -> None:
    settings = config_to_json(nanochat())
    del settings["context"]
    with pytest.raises(ConfigError, match="the model's config lacks 'context'"):
        config_from_json(settings)


def test_a_missing_setting_gets_its_default() -> None:
    settings = config_to_json(nanochat())
    del settings["tied_head"], settings["norm"]["momentum"]
    assert config_from_json(settings) == nanochat()


def test_a_custom_initialization_cannot_be_saved() -> None:
    with pytest.raises(ConfigError, match=r"^init=Initialization\(.* cannot be saved as JSON: .*\nfix: use the name"):
        config_to_json(nanochat(init=get_initialization("gpt2")))
