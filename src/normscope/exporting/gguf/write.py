"""Write a GGUF file, tensor by tensor."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import ConfigError
from normscope.exporting.gguf.architectures import Architecture, architecture_of
from normscope.exporting.gguf.tokenizer import GGUFTokenizer, gguf_tokenizer
from normscope.exporting.model_source import ModelSource
from normscope.models.gpt import GPTConfig

WEIGHTS = ("f16", "f32", "q8_0", "q4_0")
_BLOCK = 32
"""Quantized formats have one scale for this many neighbors of a row."""


def check_gguf(source: ModelSource) -> None:
    """Raise a ConfigError if llama.cpp cannot run the model."""
    architecture_of(source.model.config)
    gguf_tokenizer(source.tokenizer, source.model.config.vocab_size)


def write_gguf(source: ModelSource, weights: str, path: Path) -> None:
    """Write the GGUF file of a model.

    Args:
        source: the model.
        weights: format of the matrices; norms, biases and positions are float32.
        path: the file.
    """
    gguf = import_gguf()
    config = source.model.config
    architecture = architecture_of(config)
    writer = gguf.GGUFWriter(path, architecture.name)
    writer.add_name(source.name)
    writer.add_file_type(_file_type(gguf, weights))
    _add_metadata(writer, architecture, config)
    _add_tokenizer(writer, gguf_tokenizer(source.tokenizer, config.vocab_size))
    if source.tokenizer.chat_template is not None:
        writer.add_chat_template(source.tokenizer.chat_template)
    state = source.model.state_dict()
    names = {theirs: ours for theirs, ours in architecture.named_tensors(config) if ours[0] in state}
    check_complete(names.values(), state)
    kinds = {name: tensor_kind(gguf, name, state[ours[0]], weights) for name, ours in names.items()}
    for name, ours in names.items():
        rows = sum(state[one].shape[0] for one in ours)
        shape = (rows, *state[ours[0]].shape[1:])
        _add_tensor_info(gguf, writer, name, shape, kinds[name])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, ours in names.items():
            arranged = [architecture.arrange(one, state[one], config) for one in ours]
            writer.write_tensor_data(_encode(gguf, arranged, kinds[name]))
    finally:
        writer.close()


def check_complete(written: Iterable[tuple[str, ...]], state: Mapping[str, Tensor]) -> None:
    """Raise if a tensor of ours would not be written."""
    missing = state.keys() - {name for ours in written for name in ours}
    if missing:
        raise ConfigError(f"llama.cpp has no place for the tensors {', '.join(sorted(missing)[:4])}")


def import_gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise ConfigError("GGUF files need the package gguf\nfix: pip install 'normscope[export]'") from None
    return gguf


def _add_metadata(writer: Any, architecture: Architecture, config: GPTConfig) -> None:
    for key, value in architecture.metadata(config).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture.name}.{key}", value)


def _add_tokenizer(writer: Any, tokenizer: GGUFTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.splitter)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.kinds)
    writer.add_token_merges(tokenizer.merges)
    # A document starts after the end of the one before. Prompts start without it, as in `normscope sample`.
    if tokenizer.eos is not None:
        writer.add_bos_token_id(tokenizer.eos)
        writer.add_eos_token_id(tokenizer.eos)
    writer.add_add_bos_token(False)


def tensor_kind(gguf: Any, name: str, tensor: Tensor, weights: str) -> Any:
    """The format of a tensor. Rows that blocks do not divide are float16; the table of tokens keeps 8 bits."""
    kinds = gguf.GGMLQuantizationType
    if tensor.dim() == 1 or weights == "f32" or name.startswith("position_embd"):
        return kinds.F32
    if weights == "f16" or tensor.shape[1] % _BLOCK:
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


def _encode(gguf: Any, tensors: list[Tensor], kind: Any) -> NDArray[Any]:
    values = torch.cat([tensor.detach().float() for tensor in tensors]).numpy()
    if kind == gguf.GGMLQuantizationType.F32:
        return values
    if kind == gguf.GGMLQuantizationType.F16:
        return values.astype(np.float16)
    encoded: NDArray[Any] = gguf.quants.quantize(values, kind)
    return encoded
