"""The settings of a config.json in terms of the fields of `GPTConfig`, in both directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from normscope.blocks.norm import NormSpec
from normscope.errors import WeightsError
from normscope.models.gpt import GPTConfig

Settings = Mapping[str, Any]
"""The contents of config.json."""
REQUIRED = object()
"""The default of a setting that has none."""

HARMLESS = frozenset(
    [
        "model_type",
        "architectures",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "use_cache",
        "initializer_range",
        "auto_map",
        "name_or_path",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "tokenizer_class",
        "prefix",
        "finetuning_task",
        "task_specific_params",
        "problem_type",
        "id2label",
        "label2id",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
        "torchscript",
        "use_bfloat16",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "chunk_size_feed_forward",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "cache_implementation",
        "attn_implementation",
        "unsloth_version",
        "unsloth_fixed",
        "is_llama_config",  # nanotron's, in SmolLM 1 and 2
        "max_sequence_length",  # of the conversions of Llama 1
        "output_past",
        "pretraining_tp",
        "reorder_and_upcast_attn",  # precision only
        "transformers.js_config",
        "custom_pipeline",
        "custom_pipelines",
        "gradient_checkpointing",
        "use_flash_attn",
        "model_max_length",
        "predict_special_tokens",  # GPT-2's of 2019
        "attention_probs_dropout_prob",
        "hidden_dropout_prob",
    ]
)
"""Settings of any family that do not change the logits."""


@dataclass(frozen=True)
class Setting:
    """One or more settings that belong together.

    Args:
        names: their names in config.json.
        read: the fields of `GPTConfig` for the contents of config.json.
        write: the settings for a config.
    """

    names: tuple[str, ...]
    read: Callable[[Settings], dict[str, Any]]
    write: Callable[[GPTConfig], dict[str, Any]]


def value(settings: Settings, name: str, default: Any = REQUIRED) -> Any:
    """Return a setting; the default if it is missing or null."""
    found = settings.get(name)
    if found is None and default is REQUIRED:
        raise WeightsError(f"the {settings.get('model_type')} checkpoint has no {name!r}\nfix: restore its config.json")
    return default if found is None else found


def same(field: str, name: str, default: Any = REQUIRED) -> Setting:
    """A setting with the value of one of our fields."""
    return Setting(
        (name,), lambda theirs: {field: value(theirs, name, default)}, lambda config: {name: _get(config, field)}
    )


def _get(config: GPTConfig, field: str) -> Any:
    """A field, with the defaults of sizes filled in."""
    _, kv_heads, head_dim = config.head_sizes
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "hidden": config.hidden_size}
    return sizes[field] if field in sizes else getattr(config, field)


def choice(field: str, name: str, choices: Mapping[Any, Any], default: Any) -> Setting:
    """A setting whose values have other names here; several of theirs may be one of ours, the first is written."""
    ours: dict[Any, Any] = {}
    for theirs, own in choices.items():
        ours.setdefault(own, theirs)

    def read(settings: Settings) -> dict[str, Any]:
        found = value(settings, name, default)
        if not isinstance(found, str | bool) or found not in choices:
            known = ", ".join(map(str, choices))
            raise WeightsError(f"unsupported setting {name}={found!r:.80}: expected one of {known}")
        return {field: choices[found]}

    return Setting((name,), read, lambda config: {name: ours.get(getattr(config, field), default)})


def capped(field: str, name: str, default: float | None) -> Setting:
    """A soft cap, where null stands for none."""
    return Setting(
        (name,), lambda theirs: {field: theirs.get(name, default)}, lambda config: {name: getattr(config, field)}
    )


def norm(name: str, default: float, spec: NormSpec, qk_norm: NormSpec | None = None) -> Setting:
    """The eps of all norms: those over the width, and those of queries and keys."""

    def read(settings: Settings) -> dict[str, Any]:
        eps = value(settings, name, default)
        found = {"norm": replace(spec, eps=eps)}
        return found if qk_norm is None else {**found, "qk_norm": replace(qk_norm, eps=eps)}

    def write(config: GPTConfig) -> dict[str, Any]:
        eps = config.norm.eps if isinstance(config.norm, NormSpec) else None
        return {name: default if eps is None else eps}

    return Setting((name,), read, write)


def biases() -> Setting:
    """Which projections have a bias, by attention_bias and mlp_bias."""
    names = {"attention_bias": "attention", "mlp_bias": "mlp"}

    def read(settings: Settings) -> dict[str, Any]:
        on = [part for name, part in names.items() if _flag(settings, name)]
        return {"bias": len(on) == 2 or (on[0] if on else False)}

    def write(config: GPTConfig) -> dict[str, Any]:
        return {name: config.bias in (True, part) for name, part in names.items()}

    return Setting(tuple(names), read, write)


def _flag(settings: Settings, name: str) -> bool:
    found = value(settings, name, False)
    if not isinstance(found, bool):
        raise WeightsError(f"unsupported setting {name}={found!r:.80}: expected true or false")
    return found
