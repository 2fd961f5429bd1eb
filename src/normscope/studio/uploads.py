"""Texts that the page uploads to train on: limited in size, checked, and stored under names of our own."""

import codecs
import secrets
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from normscope.errors import ConfigError, FileError
from normscope.storage.json_files import MIB
from normscope.storage.safe_folder import SafeFolder
from normscope.studio.state import UPLOADS, StudioState

MAX_UPLOAD = 64 * MIB
"""Largest text in bytes."""
MAX_UPLOADS = 50
"""Most texts that are kept."""
PREVIEW = 400
"""Characters of the text that the page shows."""
_CHUNK = MIB

UploadName = Annotated[str, Meta(pattern=r"\Atext-[0-9a-f]{16}\.txt\Z")]
"""The name of a stored text."""


def store(studio: StudioState, data: bytes) -> dict[str, Any]:
    """Check that the data is text, and store it."""
    characters, preview = _check_text(data)
    studio.runs.mkdir(parents=True, exist_ok=True)
    folder = SafeFolder(studio.runs, UPLOADS)
    folder.create()
    if len(folder.names()) >= MAX_UPLOADS:
        raise ConfigError(f"{folder} has {MAX_UPLOADS} texts already\nfix: delete those that you don't need")
    name = f"text-{secrets.token_hex(8)}.txt"
    folder.write(name, data)
    return {"name": name, "bytes": len(data), "characters": characters, "preview": preview}


def upload_path(studio: StudioState, name: str) -> Path:
    """The path of a stored text."""
    folder = SafeFolder(studio.runs, UPLOADS)
    if not folder.has(name):
        raise ConfigError("the uploaded text is no longer there\nfix: upload it again")
    return folder.path / name


def _check_text(data: bytes) -> tuple[int, str]:
    """Raise if the data is not UTF-8 text; return the number of characters and the first of them."""
    decoder, characters, preview = codecs.getincrementaldecoder("utf-8")(), 0, ""
    for start in range(0, len(data) or 1, _CHUNK):
        chunk = data[start : start + _CHUNK]
        try:
            text = decoder.decode(chunk, final=start + _CHUNK >= len(data))
        except UnicodeDecodeError:
            raise FileError("the file is not UTF-8 text\nfix: convert it, or choose a .txt file") from None
        if "\0" in text:
            raise FileError("the file contains NUL characters, so it is not text\nfix: choose a .txt file")
        preview = preview or text[:PREVIEW]
        characters += len(text)
    if not preview.strip():
        raise FileError("the file is empty\nfix: choose a file with text")
    return characters, preview
