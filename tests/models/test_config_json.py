"""Configs round-trip through JSON, and invalid ones are refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.blocks.initialization import get_initialization
from normscope.blocks.norm.norm_spec import NormSpec
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
    wiring=st.sampled_from(["pre", "post", "sandwich", "parallel", "single", "none"]),
    window=st.sampled_from([None, 5]),
    dropout=st.floats(0, 0.9),
)
def test_every_config_round_trips(name: str, depth: int, heads: int, norm: Any, wiring: str, **more: Any) -> None:
    config = preset(name, depth=depth, heads=heads, width=32, context=16, norm=norm, wiring=wiring, **more)
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
