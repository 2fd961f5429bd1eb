"""safetensors: the weights by our names, the config, and the tokenizer, for programs of one's own."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from normscope.errors import FileError
from normscope.exporting.model_source import ModelSource
from normscope.models.config_json import config_to_json

MAX_SHARD_BYTES = 5 * 10**9
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = ("stored", *DTYPES)


def check_safetensors(source: ModelSource) -> None:
    """Raise a ConfigError if the config cannot be written as JSON."""
    config_to_json(source.model.config)


def write_safetensors(source: ModelSource, weights: str, folder: Path) -> None:
    """Write model.safetensors, config.json and tokenizer.json into an empty folder.

    Args:
        source: the model.
        weights: "stored" for the dtype that the model has, or a dtype.
        folder: the folder.
    """
    state = source.model.state_dict()
    write_shards(folder, ((name, in_dtype(tensor, weights)) for name, tensor in state.items()))
    (folder / "config.json").write_text(json.dumps(config_to_json(source.model.config), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(source.tokenizer.to_json(), encoding="utf-8")


def in_dtype(tensor: Tensor, weights: str) -> Tensor:
    """Convert a weight; "stored" keeps its dtype."""
    return tensor.detach() if weights == "stored" else tensor.detach().to(DTYPES[weights])


def write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]], max_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write tensors to model.safetensors, or to several files with an index if they are larger than `max_bytes`.

    Only the tensors of one file are in memory at a time.
    """
    from safetensors.torch import save_file

    files: list[tuple[Path, list[str]]] = []
    total, size, pending = 0, 0, dict[str, Tensor]()

    def flush() -> None:
        path = folder / f"model-{len(files) + 1:05d}.safetensors"
        save_file(pending, path, metadata={"format": "pt"})
        files.append((path, list(pending)))
        pending.clear()

    for name, tensor in tensors:
        if pending and size + tensor.nbytes > max_bytes:
            flush()
            size = 0
        pending[name] = (
            tensor.contiguous().clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor.contiguous()
        )
        size, total = size + tensor.nbytes, total + tensor.nbytes
    if not pending:
        raise FileError(f"there is nothing to write to {folder}")
    flush()
    if len(files) == 1:
        files[0][0].rename(folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, (path, names) in enumerate(files, 1):
        final = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        path.rename(folder / final)
        index |= dict.fromkeys(names, final)
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")
