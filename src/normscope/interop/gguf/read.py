"""Read GGUF files, the format of llama.cpp, as checkpoints."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.checks import short_repr
from normscope.errors import NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.files.gguf_file import GGUFFile, open_gguf
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf.architectures import ARCHITECTURES, SINKS, SWITCHED_OFF, Architecture
from normscope.interop.gguf.settings import Metadata, head_dim
from normscope.interop.gguf.tokenizer import read_gguf_tokenizer
from normscope.interop.huggingface.families import families
from normscope.models.gpt import GPTConfig

_FIX = "convert the model from its Hugging Face folder, or load that folder"
_ROPE_FACTORS = "rope_freqs.weight"
"""What the frequencies of Llama 3.1's rotary embeddings are divided by."""
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Its settings in all models; only the factor differs."""
_HARMLESS = frozenset(
    {"vocab_size", "attention.value_length", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
     "rope.scaling.finetuned", "tensor_data_layout"}
)  # fmt: skip
"""Metadata that is checked elsewhere, or that does not change the logits."""


_COARSE = ("Q4_0", "Q4_K", "Q6_K", "Q8_0", "BF16", "F16")
"""Formats of tensors with fewer bits than float32, the coarsest first."""


def read_gguf(path: str | Path) -> ExternalCheckpoint:
    """Read a GGUF file. Quantized tensors become float32; otherwise all weights have one dtype that holds them exactly.

    The architecture, its metadata and its tensors must all be known: what is not supported is refused by its name.
    """
    file = open_gguf(path)
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise _problem(file, f"has the unsupported general.architecture {short_repr(name)}; supported are {known}")
    architecture, tensors, prefix = ARCHITECTURES[name], _in_one_dtype(file.tensors), f"{name}."
    metadata = {key.removeprefix(prefix): _decimal(v) for key, v in file.metadata.items() if key.startswith(prefix)}
    try:
        config = _read_config(architecture, metadata, tensors)
        weights = architecture.weight_table.to_ours(config, _theirs(architecture, config, tensors))
        tokenizer = read_gguf_tokenizer(file.metadata, config.vocab_size)
    except KeyError as error:
        raise _problem(file, f"has no {name}.{error.args[0]} in its metadata") from error
    except (NormscopeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise _problem(file, f"({name}) cannot be read: {error}") from error
    template = file.metadata.get("tokenizer.chat_template")
    return ExternalCheckpoint(
        format=f"GGUF {name}",
        path=file.path,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=template if isinstance(template, str) else None,
        context_setting=f"{name}.context_length",
        quantization=_quantization(file, tensors),
    )


def _quantization(file: GGUFFile, tensors: LazyTensors) -> str | None:
    """The coarsest format of the tensors that are float32 now: float16 matrices are, beside float32 vectors."""
    if any(spec.dtype != torch.float32 for spec in tensors.specs.values()):
        return None
    return next((kind for kind in _COARSE if kind in file.types.values()), None)


def _problem(file: GGUFFile, text: str) -> WeightsError:
    return WeightsError(f"{file.path} {text}" + ("" if "\nfix: " in text else f"\nfix: {_FIX}"))


def _read_config(architecture: Architecture, metadata: Metadata, tensors: LazyTensors) -> GPTConfig:
    _check_metadata(architecture, metadata, len(tensors))
    settings = architecture.settings(metadata)
    if "token_embd.weight" not in tensors:
        raise WeightsError("it has no tensor 'token_embd.weight'")
    settings["vocab_size"] = tensors.specs["token_embd.weight"].shape[0]
    settings["tie_word_embeddings"] = "output.weight" not in tensors
    settings |= {name: f"blk.0.{layer}.bias" in tensors for name, layer in architecture.biases.items()}
    scaling = _scaling(metadata, tensors)
    if scaling is not None:
        settings["rope_scaling"] = scaling
    return families()[architecture.family].read_config(settings)


def _check_metadata(architecture: Architecture, metadata: Metadata, tensor_count: int) -> None:
    known = {*architecture.names, *architecture.extra_keys, *architecture.harmless, *_HARMLESS}
    for key, value in metadata.items():
        if key not in known and value not in (0, False, "", "none", []):
            raise WeightsError(f"unsupported metadata {key}={short_repr(value)}")
    for key in ("embedding_length", "block_count", "attention.head_count"):
        if not isinstance(metadata[key], int) or metadata[key] < 1:  # the number of heads may be one per layer
            raise WeightsError(f"unsupported metadata {key}={short_repr(metadata[key])}: expected a positive integer")
    if metadata["block_count"] > tensor_count:
        raise WeightsError(f"unsupported metadata block_count={metadata['block_count']:,} with {tensor_count} tensors")
    size = head_dim(metadata)
    expected = {"attention.value_length": size}
    if "rope.dimension_count" not in architecture.extra_keys:
        expected["rope.dimension_count"] = size
    for key, value in expected.items():
        if metadata.get(key, value) != value:
            raise WeightsError(f"unsupported metadata {key}={short_repr(metadata[key])}: expected {value}")


def _decimal(value: Any) -> Any:
    """The shortest decimal number that is the same in float32: 1e-05 instead of 9.999999747378752e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value))) if isinstance(value, float) else value


def _scaling(metadata: Metadata, tensors: LazyTensors) -> dict[str, Any] | None:
    """The setting rope_scaling."""
    kind, factor = metadata.get("rope.scaling.type", "none"), metadata.get("rope.scaling.factor", 1.0)
    if "rope_factors_long.weight" in tensors or kind not in ("none", "linear"):
        kind = kind if kind not in ("none", "linear") else "longrope"
        raise WeightsError(f"unsupported metadata rope.scaling.type={short_repr(kind)}: expected none or linear")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    return _llama3_scaling(metadata, tensors[_ROPE_FACTORS]) if _ROPE_FACTORS in tensors else None


def _llama3_scaling(metadata: Metadata, divisors: Tensor) -> dict[str, Any] | None:
    """Recover the scaling of Llama 3.1 from the divisors of its frequencies."""
    size, base = head_dim(metadata), metadata.get("rope.freq_base", 10000.0)
    factor = round(float(divisors.max()), 4)
    if factor == 1:
        return None
    speed = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    expected = speed / RotaryScaling(kind="llama3", factor=factor).scale(speed, base)
    if divisors.shape != expected.shape or not torch.allclose(divisors.double(), expected, rtol=1e-4):
        raise WeightsError(f"its {_ROPE_FACTORS} are not those of Llama 3.1")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA_3}


def _in_one_dtype(tensors: LazyTensors) -> LazyTensors:
    """The tensors in one dtype.

    Vectors are float32 in GGUF files, also beside float16 and bfloat16 matrices. They get the dtype of the matrices if
    that changes none of them, as in a file converted from bfloat16; otherwise all tensors become float32.
    """
    dtypes = {spec.dtype for spec in tensors.specs.values() if len(spec.shape) > 1}
    vectors = [name for name, spec in tensors.specs.items() if len(spec.shape) < 2 and name != _ROPE_FACTORS]
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    if not all(torch.equal(tensors[name].to(dtype).float(), tensors[name].float()) for name in vectors):
        dtype = torch.float32
    specs = {name: spec._replace(dtype=dtype) for name, spec in tensors.specs.items()}
    return LazyTensors(specs, lambda name: tensors[name].to(dtype if name != _ROPE_FACTORS else torch.float32))


def _theirs(architecture: Architecture, config: GPTConfig, tensors: LazyTensors) -> Mapping[str, Tensor]:
    """The tensors of the model, with the rows of q and k sorted for rotary embeddings of the halves of a head."""
    sinks = [name for name in tensors if architecture.has_sinks and re.fullmatch(SINKS.format(i=r"\d+"), name)]
    for name in sinks:
        if (tensors[name] > SWITCHED_OFF).any():
            raise WeightsError(f"unsupported tensor {name}: attention sinks")
    specs = {name: spec for name, spec in tensors.specs.items() if name not in (_ROPE_FACTORS, *sinks)}
    if not architecture.neighbors:
        return LazyTensors(specs, tensors.__getitem__)
    pairs = config.head_sizes[2] // 2

    def read(name: str) -> Tensor:
        tensor = tensors[name]
        if re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name):
            rows: Tensor = tensor.unflatten(0, (-1, pairs, 2)).transpose(1, 2).flatten(0, 2)
            return rows
        return tensor

    return LazyTensors(specs, read)
