"""The architecture of llama.cpp that a model has: its metadata and tensors, by the tables that read GGUF files."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.errors import ConfigError
from normscope.exporting.requirements import format_setting
from normscope.interop.config_differences import differing_fields
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf.architectures import ARCHITECTURES, SINKS, SWITCHED_OFF
from normscope.interop.huggingface.families import families
from normscope.models.gpt import GPTConfig
from normscope.storage.tensor_spec import TensorSpec

_TANH = {"gelu": "gelu-tanh", "geglu": "geglu-tanh"}
_BY_TENSORS = ("vocab_size", "tie_word_embeddings", "rope_scaling")
"""Settings that a file tells by its tensors."""
_FLOATS = ("epsilon", "softcapping", "rope.freq_base", "rope.scaling.factor")
_ROPE_FACTORS = "rope_freqs.weight"


def llama_cpp_config(config: GPTConfig) -> GPTConfig:
    """The config as llama.cpp computes it: its GELU is the tanh approximation. Windows that hide nothing are left out.

    >>> from normscope.models.presets import gpt2
    >>> llama_cpp_config(gpt2(window=4096)).activation, llama_cpp_config(gpt2(window=4096)).window
    ('gelu-tanh', None)
    """
    config = dataclasses.replace(config, activation=_TANH.get(config.activation, config.activation))
    if config.window is None or config.window < config.context:
        return config
    if config.local_rotary_base is not None:  # windows also say which layers have another rotary base
        return dataclasses.replace(config, window=config.context)
    return dataclasses.replace(config, window=None, window_pattern="S")


def architecture_of(config: GPTConfig) -> str:
    """Return the name of the architecture with models of this config; raise a ConfigError that names the fields."""
    missing = {name: _missing(name, config) for name in ARCHITECTURES}
    closest = min(missing, key=lambda name: [*map(len, missing[name])])
    differing = dict.fromkeys(field for fields in missing[closest] for field in fields)
    if differing:
        fields = ", ".join(f"{field}={format_setting(getattr(config, field))}" for field in differing)
        raise ConfigError(
            f"llama.cpp cannot run this model: no architecture has {fields} (closest: {closest})\n"
            f"fix: export a model of `normscope train --preset llama`, or use --to onnx"
        )
    return closest


def _missing(name: str, config: GPTConfig) -> tuple[list[str], list[str]]:
    """The fields that the files of an architecture lack, by reading the metadata, and those that llama.cpp lacks."""
    architecture = ARCHITECTURES[name]
    family, config = families()[architecture.family], llama_cpp_config(config)
    closest = family.closest(config)
    written = family.write_config(closest)
    by_tensors = {key: written[key] for key in (*_BY_TENSORS, *architecture.biases) if key in written}
    read = family.read_config({**architecture.settings(metadata(name, closest)), **by_tensors})
    limited = [field for field, runs in architecture.limits.items() if not runs(config)]
    kinds = ("linear", "llama3") if architecture.divides_frequencies else ("linear",)
    if config.rotary_scaling is not None and config.rotary_scaling.kind not in kinds:
        limited.append("rotary_scaling")
    return differing_fields(config, llama_cpp_config(read)), limited


def metadata(name: str, config: GPTConfig) -> dict[str, Any]:
    """The metadata of a model, by the keys after the name of the architecture."""
    architecture = ARCHITECTURES[name]
    settings = families()[architecture.family].write_config(config)
    found = {key: settings.get(setting) for key, setting in architecture.names.items()}
    found["vocab_size"] = config.vocab_size
    if config.positions == "rotary":
        sizes = ("attention.key_length", "attention.value_length") if "attention.key_length" in found else ()
        found |= dict.fromkeys((*sizes, "rope.dimension_count"), config.head_sizes[2])
        rope = settings.get("rope_scaling") or {}
        if rope.get("rope_type") == "linear":
            found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    for extra in architecture.extras:
        found |= extra.write(config)
    return {
        key: float(value) if any(part in key for part in _FLOATS) else value
        for key, value in found.items()
        if value is not None
    }


def tensors(name: str, config: GPTConfig, ours: Mapping[str, Tensor]) -> LazyTensors:
    """The tensors of a GGUF file, each made when it is looked up."""
    theirs = ARCHITECTURES[name].weight_table.to_theirs(config, ours)
    extra = _extra_tensors(name, config)

    def read(key: str) -> Tensor:
        return extra[key] if key in extra else arrange(name, key, theirs[key], config)

    return LazyTensors({**theirs.specs, **{key: TensorSpec.of(value) for key, value in extra.items()}}, read)


def arrange(name: str, key: str, tensor: Tensor, config: GPTConfig) -> Tensor:
    """Sort the rows of queries and keys for a rotary embedding of neighboring features, if llama.cpp has one."""
    if not ARCHITECTURES[name].neighbors or not re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", key):
        return tensor
    rows: Tensor = tensor.unflatten(0, (-1, 2, config.head_sizes[2] // 2)).transpose(1, 2)
    return rows.reshape(tensor.shape)


def _extra_tensors(name: str, config: GPTConfig) -> dict[str, Tensor]:
    """Tensors that are no weights: what Llama 3.1's rotary frequencies are divided by, and sinks switched off."""
    found = {}
    scaling, half = config.rotary_scaling, config.head_sizes[2] // 2
    if config.positions == "rotary" and scaling is not None and scaling.kind == "llama3":
        speed = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        found[_ROPE_FACTORS] = (speed / scaling.scale(speed, config.rotary_base)).float()
    if ARCHITECTURES[name].has_sinks:
        found |= {SINKS.format(i=i): torch.full((config.heads,), SWITCHED_OFF) for i in range(config.depth)}
    return found
