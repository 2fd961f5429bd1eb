"""Read the checkpoints of nanoGPT: ckpt.pt, with the model, its arguments and the state of the optimizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.checks import as_path
from normscope.errors import FileError, NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.files.torch_file import is_state_dict, read_torch_file, without_wrappers
from normscope.interop.huggingface.weight_table import Source, WeightTable
from normscope.interop.nano.nanogpt_tokenizer import find_tokenizer
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
TABLE = WeightTable(
    layers={
        "embedding": "transformer.wte",
        "position": "transformer.wpe",
        **{f"blocks.{{i}}.attention.{name}": Source("transformer.h.{i}.attn.c_attn", "rows") for name in "qkv"},
        "blocks.{i}.attention.out": "transformer.h.{i}.attn.c_proj",
        "blocks.{i}.mlp.up": "transformer.h.{i}.mlp.c_fc",
        "blocks.{i}.mlp.down": "transformer.h.{i}.mlp.c_proj",
        "blocks.{i}.norms.0": "transformer.h.{i}.ln_1",
        "blocks.{i}.norms.1": "transformer.h.{i}.ln_2",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    ignored=r"transformer\.h\.\d+\.attn\.bias",  # causal masks
)


def read_nanogpt(path: str | Path) -> ExternalCheckpoint:
    """Read nanoGPT's ckpt.pt, or the `out_dir` that holds it.

    The tokenizer is that of a meta.pkl or of GPT-2, in the same folder or in the data folder of the dataset.
    """
    path = as_path(path, "a nanoGPT checkpoint")
    path = path / "ckpt.pt" if path.is_dir() else path
    if not path.exists():
        raise FileError(f"there is no checkpoint {path}\nfix: {_FIX}")
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not is_state_dict(content.get("model")):
        raise WeightsError(f"{path} is not a nanoGPT checkpoint: it has no 'model' with tensors\nfix: {_FIX}")
    try:
        config = _config(content.get("model_args"))
        weights = TABLE.to_ours(config, without_wrappers(content["model"])).copies()
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
