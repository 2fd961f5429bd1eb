"""The texts that trials learn from: the built-in stories, or a file, of which the lab keeps a copy under its digest."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.data.stories import stories
from normscope.errors import CorpusError, FileError
from normscope.storage.files import AtomicFile, make_folder, open_regular, read_limited
from normscope.storage.json_files import reraise_as

STORIES = "stories"
STORY_BYTES = 400_000
VALIDATION_BYTES = 16_000
"""How much is held out, at most a tenth: enough that its own choice moves a loss by less than the seed does."""
LEAST_BYTES = 10_000
MOST_BYTES = 2**30
"""Each process has the text in its memory; the runs are too short to read more of it."""

_folder: ContextVar[Path | None] = ContextVar("texts", default=None)


@dataclass(frozen=True)
class ByteCorpus:
    """A text as tokens: its bytes, numbered from 0 in the order of their values.

    Args:
        train, validation: the tokens to learn from, and those held out, from the end of the text.
        vocab_size: how many different bytes there are.
    """

    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    vocab_size: int


@contextmanager
def text_folder(folder: Path | None) -> Iterator[None]:
    """Find texts here while the block runs."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def store_text(path: str | Path, folder: Path) -> dict[str, str]:
    """Copy a text into the lab's folder; returns how settings name it: by its digest, wherever the file may go."""
    content = _read(path)
    if len(content) < LEAST_BYTES:
        raise CorpusError(f"{path} has {len(content):,} bytes, and at least {LEAST_BYTES:,} are needed\nfix: more text")
    digest = hashlib.sha256(content).hexdigest()
    make_folder(folder)
    with AtomicFile(folder / f"{digest}.txt") as file:
        file.write(content)
    return {"name": Path(path).name, "sha256": digest}


def non_utf8_notice(path: str | Path) -> str | None:
    """A word on a file that is no text: anything can be learnt byte by byte, but seldom is it what was meant."""
    try:
        _read(path).decode()
    except UnicodeDecodeError:
        return f"{path} is not text in UTF-8; its bytes are learnt as they are"
    except FileError:  # which `store_text` will tell
        pass
    return None


def _read(path: str | Path) -> bytes:
    """A file that is read whole, and more than once: so neither a pipe, nor one that the memory has no room for."""
    with reraise_as(FileError, "the path of a text file"), open_regular(path) as file:
        return read_limited(file, path, MOST_BYTES)


def load_text(text: str | Mapping[str, Any]) -> ByteCorpus:
    """The text that settings name."""
    return _stories() if text == STORIES else _kept(str(_folder.get()), dict(text)["sha256"])  # type: ignore[arg-type]


@cache
def _stories() -> ByteCorpus:
    """Told by two series, as training on the stories does: one to learn from, one held out."""
    return _numbered(_told(0, STORY_BYTES), _told(1, VALIDATION_BYTES))


def _told(series: int, size: int) -> bytes:
    told = bytearray()
    for story in stories(series):
        told += story.text.encode() + b"\n\n"
        if len(told) >= size:
            break
    return bytes(told[:size])


@cache
def _kept(folder: str, digest: str) -> ByteCorpus:
    path = Path(folder) / f"{digest}.txt"
    with reraise_as(FileError, "name the text again"), open_regular(path) as file:
        content = read_limited(file, path, MOST_BYTES)
    if hashlib.sha256(content).hexdigest() != digest:
        raise FileError(f"{path} is not the text that it was\nfix: name the text again")
    held_out = min(VALIDATION_BYTES, len(content) // 10)
    return _numbered(content[:-held_out], content[-held_out:])


def _numbered(train: bytes, validation: bytes) -> ByteCorpus:
    used = np.unique(np.frombuffer(train + validation, dtype=np.uint8))
    numbers = np.zeros(256, dtype=np.uint8)
    numbers[used] = np.arange(len(used), dtype=np.uint8)
    return ByteCorpus(
        numbers[np.frombuffer(train, dtype=np.uint8)], numbers[np.frombuffer(validation, dtype=np.uint8)], len(used)
    )
