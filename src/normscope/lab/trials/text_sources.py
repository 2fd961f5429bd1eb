"""Training texts: the built-in stories, or a file, which the lab copies under its digest."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
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
"""Size of the held-out text, at most a tenth: its sampling noise is below seed noise."""
MIN_BYTES = 10_000
MAX_BYTES = 2**30
"""Each process holds the text in memory, and the runs are too short to use more."""

_folder: ContextVar[Path | None] = ContextVar("texts", default=None)


@dataclass(frozen=True)
class ByteCorpus:
    """A text as tokens: its distinct bytes, numbered from 0.

    Args:
        train, validation: tokens for training, and held-out tokens from the end of the text.
        vocab_size: number of distinct bytes.
    """

    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    vocab_size: int


@contextmanager
def text_folder(folder: Path | None) -> Iterator[None]:
    """Set the folder of stored texts within the block."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def store_text(path: str | Path, folder: Path) -> dict[str, str]:
    """Copy a text into the lab's folder; return its reference for settings, by name and digest."""
    content = _read(path, "the path of a text file")
    if len(content) < MIN_BYTES:
        raise CorpusError(f"{path} has {len(content):,} bytes, at least {MIN_BYTES:,} are needed\nfix: add text")
    digest = hashlib.sha256(content).hexdigest()
    make_folder(folder)
    with AtomicFile(folder / f"{digest}.txt") as file:
        file.write(content)
    return {"name": Path(path).name, "sha256": digest}


def non_utf8_notice(path: str | Path) -> str | None:
    """Return a notice if a file is not UTF-8 text, which can be trained on but is rarely intended."""
    try:
        _read(path, "").decode()
    except UnicodeDecodeError:
        return f"{path} is not UTF-8 text; training uses its raw bytes"
    except FileError:  # `store_text` reports it
        pass
    return None


def _read(path: str | Path, fix: str) -> bytes:
    """Read a regular file of limited size: it is read more than once, so it cannot be a pipe."""
    with reraise_as(FileError, fix), open_regular(path) as file:
        return read_limited(file, path, MAX_BYTES)


def load_text(text: str | Mapping[str, Any]) -> ByteCorpus:
    """Load the text of a setting."""
    return _stories() if text == STORIES else _stored(str(_folder.get()), dict(text)["sha256"])  # type: ignore[arg-type]


@cache
def _stories() -> ByteCorpus:
    """Two independent series of stories, one for training and one held out."""
    return _encode(_story_bytes(0, STORY_BYTES), _story_bytes(1, VALIDATION_BYTES))


def _story_bytes(series: int, size: int) -> bytes:
    told = chain.from_iterable(story.text.encode() + b"\n\n" for story in stories(series))
    return bytes(islice(told, size))


@cache
def _stored(folder: str, digest: str) -> ByteCorpus:
    path = Path(folder) / f"{digest}.txt"
    content = _read(path, "pass the text file again")
    if hashlib.sha256(content).hexdigest() != digest:
        raise FileError(f"{path} has changed since it was stored\nfix: pass the text file again")
    held_out = min(VALIDATION_BYTES, len(content) // 10)
    return _encode(content[:-held_out], content[-held_out:])


def _encode(train: bytes, validation: bytes) -> ByteCorpus:
    content = np.frombuffer(train + validation, dtype=np.uint8)
    used, numbers = np.unique(content), np.zeros(256, dtype=np.uint8)
    numbers[used] = np.arange(len(used), dtype=np.uint8)
    tokens = numbers[content]
    return ByteCorpus(tokens[: len(train)], tokens[len(train) :], len(used))
