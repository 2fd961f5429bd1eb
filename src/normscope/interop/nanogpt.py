"""Read the checkpoints of nanoGPT: ckpt.pt, with the model, its arguments and the state of the optimizer."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.checks import as_path
from normscope.errors import FileError, NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.converted_weights import ConvertedWeights, Source, without_prefixes
from normscope.interop.files.torch_file import read_torch_file
from normscope.interop.nanogpt_tokenizer import find_tokenizer
from normscope.models.gpt import GPTConfig
from normscope.models.presets import gpt2

_FIX = "name the ckpt.pt that nanoGPT's train.py wrote, or its folder"
_ARGUMENTS = {
    "n_layer": "depth",
    "n_head": "heads",
    "n_embd": "width",
    "block_size": "context",
    "vocab_size": "vocab_size",
    "bias": "bias",
    "dropout": "dropout",
}
"""nanoGPT's name of each setting, and ours."""


def read_nanogpt(path: str | Path) -> ExternalCheckpoint:
    """Read nanoGPT's ckpt.pt, or the `out_dir` that holds it.

    The tokenizer is that of a meta.pkl or of GPT-2, in the same folder or in the data folder of the dataset.
    """
    path = as_path(path, "a nanoGPT checkpoint")
    path = path / "ckpt.pt" if path.is_dir() else path
    if not path.exists():
        raise FileError(f"there is no checkpoint {path}\nfix: {_FIX}")
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        raise WeightsError(f"{path} is not a nanoGPT checkpoint: it has no 'model'\nfix: {_FIX}")
    try:
        config = _config(content.get("model_args"))
        weights = _weights(config, content["model"])
    except NormscopeError as error:
        raise WeightsError(f"{path}: {error}") from None
    settings = content.get("config")
    dataset = settings.get("dataset") if isinstance(settings, Mapping) else None
    tokenizer, notices = find_tokenizer(path.parent, dataset, config.vocab_size)
    return ExternalCheckpoint("nanoGPT", path, config, weights, tokenizer, notices=notices)


def _config(arguments: Any) -> GPTConfig:
    if not isinstance(arguments, Mapping):
        raise WeightsError(f"it has no 'model_args'\nfix: {_FIX}")
    required = _ARGUMENTS.keys() - {"dropout"}
    unknown, missing = sorted(map(str, arguments.keys() - _ARGUMENTS.keys())), sorted(required - arguments.keys())
    if unknown or missing:
        problem = f"has the unknown setting {unknown[0]!r:.40}" if unknown else f"lacks {missing[0]!r}"
        raise WeightsError(f"its model_args {problem}\nfix: {_FIX}; models of a changed nanoGPT are not supported")
    return gpt2(**{_ARGUMENTS[name]: value for name, value in arguments.items()})


def _weights(config: GPTConfig, theirs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    named = without_prefixes(theirs)
    named = {
        name: weight for name, weight in named.items() if not re.fullmatch(r"transformer\.h\.\d+\.attn\.bias", name)
    }
    head, table = named.pop("lm_head.weight", None), named.get("transformer.wte.weight")
    if head is not None and table is not None and head.data_ptr() != table.data_ptr() and not torch.equal(head, table):
        raise WeightsError("lm_head.weight differs from transformer.wte.weight, but nanoGPT ties them")
    sources = {
        "embedding.weight": Source("transformer.wte.weight"),
        "position.weight": Source("transformer.wpe.weight"),
    }
    for kind in ("weight", "bias") if config.bias else ("weight",):
        sources[f"final_norm.{kind}"] = Source(f"transformer.ln_f.{kind}")
        for i in range(config.depth):
            block, layer = f"blocks.{i}", f"transformer.h.{i}"
            for position, name in enumerate("qkv"):
                part = partial(_third, position=position)
                sources[f"{block}.attention.{name}.{kind}"] = Source(f"{layer}.attn.c_attn.{kind}", part)
            for ours, other in _LAYERS.items():
                sources[f"{block}.{ours}.{kind}"] = Source(f"{layer}.{other}.{kind}")
    return ConvertedWeights(named, sources)


_LAYERS = {
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "norms.0": "ln_1",
    "norms.1": "ln_2",
}


def _third(weight: Tensor, position: int) -> Tensor:
    """One of queries, keys and values, which nanoGPT computes with one matrix."""
    return weight.tensor_split(3)[position]
