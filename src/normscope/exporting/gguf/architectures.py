"""The architecture of llama.cpp that a model has: its metadata and tensors, by the tables that read GGUF files."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.errors import ConfigError
from normscope.interop.config_differences import differing_fields
from normscope.interop.families import families
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf_architectures import ARCHITECTURES
from normscope.models.gpt import GPTConfig
from normscope.storage.tensor_spec import TensorSpec

_GELU = ("gelu", "gelu-tanh")
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "gpt2": _GELU,
    "llama": ("swiglu",),
    "qwen2": ("swiglu",),
    "qwen3": ("swiglu",),
    "olmo2": ("swiglu",),
}
"""The architectures that are written, and the activation that llama.cpp computes in them.

Its GELU is a table of the tanh approximation in half precision, for either.
"""
_ROPE_FACTORS = "rope_freqs.weight"


def architecture_of(config: GPTConfig) -> str:
    """Return the name of the architecture with models of this config; raise a ConfigError that names the fields."""
    missing = {name: _missing(name, config) for name in ACTIVATIONS}
    closest = min(missing, key=lambda name: len(missing[name]))
    if missing[closest]:
        fields = ", ".join(f"{field}={getattr(config, field)!r:.80}" for field in missing[closest])
        raise ConfigError(
            f"llama.cpp cannot run this model: no architecture has {fields} (closest: {closest})\n"
            f"fix: export a model of `normscope train --preset llama`, or use --to onnx"
        )
    return closest


def _missing(name: str, config: GPTConfig) -> list[str]:
    """The fields that the models of an architecture do not have."""
    found = differing_fields(config, families()[ARCHITECTURES[name].family].closest(config))
    if config.activation not in ACTIVATIONS[name] and "activation" not in found:
        found = [*found, "activation"]
    if config.rotary_scaling is not None and config.rotary_scaling.kind in ("yarn", "longrope"):
        found = [*found, "rotary_scaling"]
    windows = [window for window in map(config.window_of, range(config.depth)) if window is not None]
    if any(window < config.context for window in windows) and "window" not in found:
        found = [*found, "window"]
    return found


def metadata(name: str, config: GPTConfig) -> dict[str, Any]:
    """The metadata of a model, by the keys after the name of the architecture."""
    settings = families()[ARCHITECTURES[name].family].write_config(config)
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    found = {key: settings.get(setting) for key, setting in ARCHITECTURES[name].names.items()}
    found["vocab_size"] = config.vocab_size
    if config.positions == "rotary":
        head_dim = config.head_sizes[2]
        sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        found |= {**dict.fromkeys(sizes, head_dim), "rope.freq_base": float(config.rotary_base)}
        if rope.get("rope_type") == "linear":
            found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    return {key: value for key, value in found.items() if value is not None}


def tensors(name: str, config: GPTConfig, ours: Mapping[str, Tensor]) -> LazyTensors:
    """The tensors of a GGUF file, each made when it is looked up."""
    theirs = ARCHITECTURES[name].weight_table.to_theirs(config, ours)
    factors = _rope_factors(config)
    extra = {} if factors is None else {_ROPE_FACTORS: factors}

    def read(key: str) -> Tensor:
        return extra[key] if key in extra else arrange(name, key, theirs[key], config)

    return LazyTensors({**theirs.specs, **{key: TensorSpec.of(value) for key, value in extra.items()}}, read)


def arrange(name: str, key: str, tensor: Tensor, config: GPTConfig) -> Tensor:
    """Sort the rows of queries and keys for a rotary embedding of neighboring features, if llama.cpp has one."""
    if not ARCHITECTURES[name].neighbors or not re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", key):
        return tensor
    rows: Tensor = tensor.unflatten(0, (-1, 2, config.head_sizes[2] // 2)).transpose(1, 2)
    return rows.reshape(tensor.shape)


def _rope_factors(config: GPTConfig) -> Tensor | None:
    """What llama.cpp divides the rotary frequencies of Llama 3.1 by."""
    scaling, half = config.rotary_scaling, config.head_sizes[2] // 2
    if config.positions != "rotary" or scaling is None or scaling.kind != "llama3":
        return None
    speed = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    return (speed / scaling.scale(speed, config.rotary_base)).float()
