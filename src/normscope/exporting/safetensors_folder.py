"""safetensors: the weights by our names, the config, and the tokenizer, for programs of one's own."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from normscope.data.tokenizers.template_settings import TOKENIZER_CONFIG, template_settings
from normscope.exporting.model_source import ModelSource
from normscope.interop.files.lazy_tensors import LazyTensors, tensor_specs
from normscope.interop.files.safetensors_file import INDEX_NAME, SINGLE_NAME, safetensors_bytes
from normscope.models.config_json import config_to_json
from normscope.storage.tensor_spec import TensorSpec

MAX_SHARD_BYTES = 5 * 10**9
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = ("stored", *DTYPES)


def check_safetensors(source: ModelSource) -> None:
    """Raise a ConfigError if the config cannot be written as JSON."""
    config_to_json(source.model.config)


def write_safetensors(source: ModelSource, weights: str, folder: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer into an empty folder.

    Args:
        source: the model.
        weights: "stored" for the dtype that the model has, or a dtype.
        folder: the folder.
    """
    write_shards(folder, converted(source.model.state_dict(), weights))
    (folder / "config.json").write_text(json.dumps(config_to_json(source.model.config), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(source.tokenizer.to_json(), encoding="utf-8")
    if source.tokenizer.chat_template is not None or source.tokenizer.template_variables:
        (folder / TOKENIZER_CONFIG).write_bytes(template_settings(source.tokenizer))


def converted(tensors: Mapping[str, Tensor], weights: str) -> LazyTensors:
    """Weights in another dtype, each converted when it is looked up; "stored" keeps theirs."""
    specs = tensor_specs(tensors)
    if weights != "stored":
        specs = {name: spec._replace(dtype=DTYPES[weights]) for name, spec in specs.items()}
    return LazyTensors(specs, lambda name: tensors[name].detach().to(specs[name].dtype))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], max_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write tensors to model.safetensors, or to several files with an index if they are larger than `max_bytes`.

    Only one tensor is looked up at a time.
    """
    specs, shards, size = tensor_specs(tensors), list[dict[str, TensorSpec]](), max_bytes
    for name, spec in specs.items():
        if size + spec.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = spec
        size += spec.nbytes
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [SINGLE_NAME]
    for file, shard in zip(names, shards, strict=True):
        with (folder / file).open("wb") as opened:
            opened.writelines(safetensors_bytes(LazyTensors(shard, tensors.__getitem__)))
    if len(shards) > 1:
        total = sum(spec.nbytes for spec in specs.values())
        index = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / INDEX_NAME).write_text(json.dumps(content, indent=2) + "\n")
