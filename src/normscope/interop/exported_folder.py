"""Read a folder that `normscope export --to safetensors` wrote: weights by our names, config, and tokenizer."""

from pathlib import Path
from typing import Any

from normscope.checks import as_path
from normscope.data.tokenizers.load import ModelTokens, load_tokenizer
from normscope.errors import NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.files.safetensors_file import open_sharded
from normscope.models.config_json import config_from_json
from normscope.storage.json_files import MIB, read_json

MAX_CONFIG_BYTES = MIB
"""Limit of config.json, which has a few KiB."""
_FIX = "export it again"


def read_exported_folder(folder: str | Path) -> ExternalCheckpoint:
    """Read the model of such a folder; names and shapes are checked when the model is built."""
    folder = as_path(folder, "a model's folder")
    path = folder / "config.json"
    settings = read_json(path, dict[str, Any], fix=_FIX, error=WeightsError, max_bytes=MAX_CONFIG_BYTES)
    try:
        config = config_from_json(settings)
    except NormscopeError as error:
        raise WeightsError(f"{path} is not a valid config of normscope: {error}") from error
    tokens = ModelTokens(config.vocab_size, None)
    tokenizer = load_tokenizer(folder, tokens) if (folder / "tokenizer.json").exists() else None
    return ExternalCheckpoint("exported folder", folder, config, open_sharded(folder), tokenizer)
