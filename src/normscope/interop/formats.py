"""The formats of other tools that can be read: how each is recognized, and its reader.

To add a format, add a line to `FORMATS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import FileError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.html_page import read_page
from normscope.interop.huggingface import read_huggingface
from normscope.storage.files import open_regular
from normscope.storage.json_files import read_json

CONFIG_NAME = "config.json"


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


def is_huggingface(path: Path) -> bool:
    """Whether this is a folder whose config.json has a model_type; raises if the file cannot be read."""
    config = path / CONFIG_NAME
    return config.is_file() and "model_type" in read_json(
        config, dict[str, Any], fix="restore it from a copy", error=FileError
    )


def _is_page(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".html", ".htm")


def starts_with(path: Path, magic: bytes) -> bool:
    """Whether this is a file that starts with these bytes."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(magic)) == magic


FORMATS = (
    Format("Hugging Face", "a folder with config.json (with a model_type)", is_huggingface, read_huggingface),
    Format("exported page", "an .html file of `normscope export`", _is_page, read_page),
)
