"""Tell a run from a Hugging Face checkpoint."""

from pathlib import Path
from typing import Any

from normscope.errors import FileError, NormscopeError
from normscope.storage.json_files import read_json


def is_huggingface(folder: Path, *, error: type[NormscopeError] = FileError, fix: str = "") -> bool:
    """Whether the config.json of a folder is of a Hugging Face checkpoint; raises if it cannot be read."""
    return "model_type" in read_json(folder / "config.json", dict[str, Any], fix=fix, error=error)
