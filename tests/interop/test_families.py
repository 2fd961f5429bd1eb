"""Each family is a table in a file of its own, which accounts for every setting of its models."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.errors import ConfigError, NormscopeError, WeightsError
from normscope.interop.config_differences import differing_fields
from normscope.interop.huggingface import families as package
from normscope.interop.huggingface.families import families, family_of
from normscope.interop.huggingface.settings import HARMLESS
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import gpt2, llama, nanochat
from tests.interop.checkpoints import FORMS

every_family = pytest.mark.parametrize("name", families())


def config_class(name: str) -> Any:
    return type(transformers.AutoConfig.for_model(name))


def settings_of(form: str, **changes: Any) -> dict[str, Any]:
    """The contents of config.json of this form, through JSON, with some changes."""
    kind, given = FORMS[form]
    config = getattr(transformers, f"{kind}Config")(**given)
    return {**json.loads(config.to_json_string(use_diff=False)), "model_type": config.model_type, **changes}


def test_every_file_is_a_family() -> None:
    files = [path.stem for path in Path(str(package.__file__)).parent.glob("*.py") if not path.stem.startswith("_")]
    assert len(families()) == len(files) == 12


@every_family
def test_every_setting_of_transformers_is_read_or_harmless_or_refused_unless_it_is_off(name: str) -> None:
    """A setting that is none of these, and is on by default, would be refused in every checkpoint."""
    family, config = families()[name], config_class(name)()
    known = {each for setting in family.settings for each in setting.names} | family.harmless | HARMLESS
    for setting, value in json.loads(config.to_json_string(use_diff=False)).items():
        private = setting.startswith("_")
        assert setting in known or private or not value or family.required.get(setting) == value, setting


@every_family
def test_a_family_names_every_weight(name: str) -> None:
    family = families()[name]
    form = next(form for form, (kind, _) in FORMS.items() if config_class(name).__name__ == f"{kind}Config")
    config = family.read_config(settings_of(form))
    assert family.read_config(family.write_config(config)) == family.closest(config)
    assert differing_fields(family.closest(config), config) == []
    weights = GPT(config).state_dict()
    assert family.weights(config, family.to_theirs(config, weights)).specs.keys() == weights.keys()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("llama", {"attention_multiplier": 0.5}, "setting attention_multiplier=0.5: not known .* 'llama'"),
    "quantized": ("llama", {"quantization_config": {"quant_method": "gptq"}}, "setting quantization_config="),
    "rotation-of-neighbors": ("llama", {"is_llama_config": True, "rope_interleaved": True}, "rope_interleaved=True"),
    "experts": ("qwen3", {"num_experts": 8}, "setting num_experts=8"),
    "layer-types-of-mistral": ("mistral", {"layer_types": ["sliding_attention"] * 3}, "setting layer_types="),
    "activation": ("qwen2", {"hidden_act": "gelu_10"}, "setting hidden_act='gelu_10': expected one of silu"),
    "activation-gemma": ("gemma2", {"hidden_activation": "xielu"}, "setting hidden_activation='xielu'"),
    "yarn-without-factor": ("qwen2", {"rope_parameters": {"rope_type": "yarn"}}, "'yarn' have no 'attention_factor'"),
    "yarn-between-indices": (
        "qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "setting truncate=False",
    ),
    "dynamic": ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "setting rope_type='dynamic'"),
    "longrope": ("phi3", {"rope_scaling": {"type": "su", "long_factor": [1]}}, "'longrope' have no 'short_factor'"),
    "linear-phi3": ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "setting rope_type='linear'"),
    "linear-without-factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "'linear' have no 'factor'"),
    "llama3-without-low": (
        "llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' have no 'high_freq_factor'",
    ),
    "rope-extra": (
        "llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, "setting beta_fast=3",
    ),
    "rope-list": ("llama", {"rope_parameters": [1]}, r"setting rope_parameters=\[1\]: it must be a dict"),
    "part": ("llama", {"partial_rotary_factor": 0.5, "rope_parameters": None}, "partial_rotary_factor=0.5"),
    "part-of-neox": ("neox", {"rope_parameters": {"partial_rotary_factor": 7}}, "fraction of a head, 7"),
    "local-scaling": (
        "gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "setting rope_parameters.sliding_attention",
    ),
    "layer-type": ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "setting layer_types='chunked_attention'"),
    "layer-count": ("qwen3", {"layer_types": ["full_attention"] * 2}, "one type for each of 3 layers"),
    "no-window": ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "but there is no sliding_window"),
    "both-ways": ("gemma3", {"use_bidirectional_attention": True}, "setting use_bidirectional_attention=True"),
    "attention-cap": ("gemma3", {"attn_logit_softcapping": 50.0}, "setting attn_logit_softcapping=50.0"),
    "no-rope": ("smollm3", {"no_rope_layers": [1, 2, 1]}, r"setting no_rope_layers=\[1, 2, 1\]"),
    "interval": ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": "x"}, "no_rope_layer_interval='x'"),
    "bias-text": ("llama", {"attention_bias": "yes"}, "setting attention_bias='yes': expected true or false"),
    "parallel-text": ("neox", {"use_parallel_residual": "no"}, "setting use_parallel_residual='no'"),
    "cross-attention": ("gpt2", {"add_cross_attention": True}, "setting add_cross_attention=True"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(case: str) -> None:
    form, changes, words = REFUSED[case]
    settings = settings_of(form, **changes)
    with pytest.raises(WeightsError, match=words):
        families()[settings["model_type"]].read_config(settings)


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm2": ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"a": 1}}),
    "smollm3": ("smollm3", {"max_window_layers": 28, "pretraining_tp": 2}),
    "llama-1": ("llama", {"max_sequence_length": 2048}),
    "gemma-2": ("gemma2", {"hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096}),
    "gpt2": ("gpt2", {"n_ctx": 1024, "output_past": True, "task_specific_params": {"text-generation": {}}}),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_settings_without_effect_in_published_files_are_harmless(case: str) -> None:
    form, more = PUBLISHED[case]
    family = families()[settings_of(form)["model_type"]]
    assert family.read_config(settings_of(form, **more)) == family.read_config(settings_of(form))


def test_settings_that_are_off_or_private_are_ignored() -> None:
    settings = settings_of("llama", num_experts=None, use_mrope=False, _attn_implementation="sdpa")
    assert families()["llama"].read_config(settings).width == 48


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "head_dim", "sliding_window", "vocab_size"])
@pytest.mark.parametrize("value", ["x", [], -1, 10**30, {"a": 1}], ids=str)
@pytest.mark.parametrize("form", ["gemma3", "qwen3-window", "smollm3", "phi3-part"])
def test_a_setting_of_another_type_gives_an_error_of_ours(form: str, key: str, value: Any) -> None:
    settings = settings_of(form, **{key: value})
    try:
        families()[settings["model_type"]].read_config(settings)
    except NormscopeError:
        return
    assert key in ("head_dim", "sliding_window")  # not in every family


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (gpt2(), "gpt2"),
        (llama(), "llama"),
        (llama(window=100), "mistral"),
        (llama(bias="qkv"), "qwen2"),
        (llama(qk_norm=NormSpec("... [d]", statistic="rms", bias=False)), "qwen3"),
        (gpt2(positions="rotary", wiring="parallel-2"), "gpt_neox"),
        (llama(rotary_pattern="RRRN"), "smollm3"),
        (llama(window=5, window_pattern="SSL"), "smollm3"),
        (llama(dropout=0.5, init="gpt2"), "llama"),
        (llama(rotary_scaling=RotaryScaling(kind="linear", factor=4.0)), "llama"),  # which Phi-3 doesn't have
        (llama(window=100, rotary_scaling=RotaryScaling(kind="yarn", factor=4.0)), "mistral"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_family_of_a_config(config: GPTConfig, name: str) -> None:
    assert family_of(config).model_type == name


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (nanochat(smear=True), "no Hugging Face family has models with smear=True"),
        (llama(norm="rms-plain"), "none with norm=NormSpec"),
        (llama(wiring="single"), "no Hugging Face family has models with wiring='single'"),
        (llama(bias="qkv", rotary_pattern="RN"), "the closest Hugging Face family, has none with"),
        (gpt2(embedding_scale=3.0), "with embedding_scale=3.0"),
    ],
    ids=str,
)
def test_what_no_family_has_is_named(config: GPTConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        family_of(config)


def test_a_difference_in_any_field_is_seen() -> None:
    """Otherwise a model could be exported as another."""
    base = llama(window=8, local_rotary_base=5.0, qk_norm="rms", rotary_dim=32)
    others: dict[str, Any] = {
        "norm": "layer", "qk_norm": None, "positions": "none", "bias": True, "embedding_norm": True, "tied_head": True,
        "activation": "geglu", "wiring": next(name for name in WIRINGS if name != "pre"), "window_pattern": "SL",
        "rotary_pattern": "RN", "attention_scale": 0.3, "attention_cap": 2.0, "logit_cap": 2.0, "embedding_scale": 2.0,
        "rotary_dim": 16, "rotary_base": 7.0, "local_rotary_base": None, "window": 9, "head_dim": 32, "kv_heads": 2,
        "hidden": 8, "heads": 8, "width": 64, "depth": 2, "vocab_size": 9, "context": 9,
    }  # fmt: skip
    for name, value in others.items():
        needed: dict[str, Any] = {"head_dim": 64} if name in ("heads", "width") else {}
        changed = dataclasses.replace(base, window_pattern="SSL", **needed)
        assert name in differing_fields(dataclasses.replace(changed, **{name: value}), changed), name
