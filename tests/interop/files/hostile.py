"""Malicious files, and a check that a reader refuses one within bounded memory."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import FileError, WeightsError

MIB = 2**20


def refusal(read: Callable[[Path], object], path: Path, most_bytes: int | None = None) -> str:
    """The message with which a reader refuses a file; it names the file, and at most so much memory was allocated."""
    if most_bytes is not None:
        tracemalloc.start()
    try:
        with pytest.raises((WeightsError, FileError)) as refused:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes is None or peak < most_bytes, f"{peak:,} bytes allocated"
    message = str(refused.value)
    assert path.name in message
    assert "\nfix: " in message
    return message.replace(str(path), path.name)


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header, a dict or bytes, which may lie about its length."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def sparse(path: Path, size: int, start: bytes = b"", end: bytes = b"") -> None:
    """A file of any size that takes no room on the disk."""
    path.write_bytes(start)
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(size - len(end))
        file.write(end)


SPECIAL_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a pipe"),
    "folder": (Path.mkdir, "it is a folder"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "link to nothing": (lambda path: path.symlink_to("missing"), "does not exist"),
    "missing": (lambda path: None, "does not exist"),
    "empty": (Path.touch, ""),
}
"""How to make each at a path, and what the message says."""
