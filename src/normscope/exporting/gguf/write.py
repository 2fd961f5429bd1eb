"""Write a GGUF file, tensor by tensor."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import ConfigError
from normscope.exporting.gguf.architectures import architecture_of, metadata, tensors
from normscope.exporting.gguf.tokenizer import check_tokenizer, gguf_tokenizer
from normscope.exporting.model_source import ModelSource

WEIGHTS = ("f16", "f32", "q8_0", "q4_0")
_BLOCK = 32
"""Quantized formats have one scale for this many neighbors of a row."""
_PHI_3_TOKENS = {"<s>", "</s>", "<unk>", "<|endoftext|>"}


def check_gguf(source: ModelSource) -> None:
    """Raise a ConfigError if llama.cpp cannot run the model."""
    architecture_of(source.model.config)
    check_tokenizer(source.tokenizer, source.model.config.vocab_size)


def write_gguf(source: ModelSource, weights: str, path: Path) -> None:
    """Write the GGUF file of a model.

    Args:
        source: the model.
        weights: format of the matrices; norms, biases and positions are float32.
        path: the file.
    """
    gguf = import_gguf()
    config = source.model.config
    name = architecture_of(config)
    writer = gguf.GGUFWriter(path, name)
    tokenizer = gguf_tokenizer(source.tokenizer, config.vocab_size)
    writer.add_name(_harmless_name(source.name, tokenizer.tokens))
    writer.add_file_type(_file_type(gguf, weights))
    _add_metadata(writer, name, metadata(name, config))
    _add_metadata(writer, "tokenizer.ggml", tokenizer.metadata())
    if source.tokenizer.chat_template is not None:
        writer.add_chat_template(source.tokenizer.chat_template)
    theirs = tensors(name, config, source.model.state_dict())
    kinds = {key: tensor_kind(gguf, key, spec.shape, weights) for key, spec in theirs.specs.items()}
    for key, spec in theirs.specs.items():
        _add_tensor_info(gguf, writer, key, spec.shape, kinds[key])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for key in theirs:
            writer.write_tensor_data(_encode(gguf, theirs[key], kinds[key]))
    finally:
        writer.close()


def import_gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise ConfigError("GGUF files need the package gguf\nfix: pip install 'normscope[export]'") from None
    return gguf


def _add_metadata(writer: Any, name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        add = {
            int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool,
            list: writer.add_array,
        }[type(value)]  # fmt: skip
        add(f"{name}.{key}", value)


def _harmless_name(name: str, tokens: Sequence[str]) -> str:
    """The name of the model. llama.cpp wants some tokens of all models that are called Phi-3.

    >>> _harmless_name("my-phi3", ["a"]), _harmless_name("my-phi3", sorted(_PHI_3_TOKENS))
    ('my-phi 3', 'my-phi3')
    """
    return name if set(tokens) >= _PHI_3_TOKENS else re.sub(r"(?i)(phi)-?(?=3)", r"\1 ", name)


def tensor_kind(gguf: Any, name: str, shape: tuple[int, ...], weights: str) -> Any:
    """The format of a tensor. Rows that blocks do not divide are float16; the table of tokens keeps 8 bits."""
    kinds = gguf.GGMLQuantizationType
    if len(shape) == 1 or weights == "f32" or name.startswith("position_embd"):
        return kinds.F32
    if weights == "f16" or shape[1] % _BLOCK:
        return kinds.F16
    return kinds.Q8_0 if weights == "q8_0" or name in ("token_embd.weight", "output.weight") else kinds.Q4_0


def _file_type(gguf: Any, weights: str) -> int:
    types = gguf.LlamaFileType
    return int(
        {"f32": types.ALL_F32, "f16": types.MOSTLY_F16, "q8_0": types.MOSTLY_Q8_0, "q4_0": types.MOSTLY_Q4_0}[weights]
    )


def _add_tensor_info(gguf: Any, writer: Any, name: str, shape: tuple[int, ...], kind: Any) -> None:
    dtypes = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    dtype = np.dtype(dtypes.get(kind, np.uint8))
    stored = shape if kind in dtypes else gguf.quant_shape_to_byte_shape(shape, kind)
    writer.add_tensor_info(name, stored, dtype, int(np.prod(stored)) * dtype.itemsize, raw_dtype=kind)


def _encode(gguf: Any, tensor: Tensor, kind: Any) -> NDArray[Any]:
    values = tensor.detach().float().contiguous().numpy()
    if kind == gguf.GGMLQuantizationType.F32:
        return values
    if kind == gguf.GGMLQuantizationType.F16:
        return values.astype(np.float16)
    encoded: NDArray[Any] = gguf.quants.quantize(values, kind)
    return encoded
