"""The formats of other tools that can be read: how each is recognized, and its reader.

To add a format, add a line to `FORMATS`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from normscope.errors import FileError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.exported_folder import read_exported_folder
from normscope.interop.gguf.read import read_gguf
from normscope.interop.html_page import read_page
from normscope.interop.huggingface.read import MAX_CONFIG_BYTES, read_huggingface
from normscope.interop.nano.nanochat import read_nanochat
from normscope.interop.nano.nanogpt import read_nanogpt
from normscope.interop.peft import is_peft, read_peft
from normscope.storage.files import open_regular
from normscope.storage.json_files import read_json

CONFIG_NAME = "config.json"
HUGGINGFACE = "Hugging Face"


@dataclass(frozen=True)
class Format:
    """A format of checkpoints.

    Args:
        name: what messages call it.
        sign: by what it is recognized.
        recognizes: whether a file or folder, which exists, is of this format.
        read: reads it.
    """

    name: str
    sign: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path], ExternalCheckpoint]


def has_config(path: Path, setting: str) -> bool:
    """Whether this is a folder whose config.json has a setting; raises if the file cannot be read."""
    config = path / CONFIG_NAME
    return config.is_file() and setting in read_json(
        config, dict[str, Any], fix="restore it from a copy", error=FileError, max_bytes=MAX_CONFIG_BYTES
    )


def _is_page(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".html", ".htm")


def starts_with(path: Path, magic: bytes) -> bool:
    """Whether this is a file that starts with these bytes."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(magic)) == magic


def _is_nanogpt(path: Path) -> bool:
    is_other_name = path.suffix == ".pt" and starts_with(path, b"PK") and not _is_nanochat(path)  # ckpt.pt, renamed
    return (path / "ckpt.pt").is_file() or is_other_name


def _is_nanochat(path: Path) -> bool:
    models = path.glob("model_*.pt") if path.is_dir() else [path]
    return any(re.fullmatch(r"model_\d+\.pt", model.name) for model in models)


FORMATS = (
    Format("peft adapter", "a folder with adapter_config.json", is_peft, read_peft),
    Format(
        HUGGINGFACE,
        "a folder with config.json (with a model_type)",
        partial(has_config, setting="model_type"),
        read_huggingface,
    ),
    Format("nanoGPT", "nanoGPT's ckpt.pt (any name but model_N.pt), or the folder with it", _is_nanogpt, read_nanogpt),
    Format("nanochat", "nanochat's model_NNNNNN.pt, or the folder with them", _is_nanochat, read_nanochat),
    Format("GGUF", "a file that starts with GGUF", partial(starts_with, magic=b"GGUF"), read_gguf),
    Format(
        "exported folder",
        "a folder of `normscope export --to safetensors`",
        partial(has_config, setting="wiring"),
        read_exported_folder,
    ),
    Format("exported page", "an .html file of `normscope export`", _is_page, read_page),
)
