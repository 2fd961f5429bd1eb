"""corpus.json: what a prepared folder holds, and where it came from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from normscope.data.fingerprints import Fingerprint
from normscope.errors import FileError
from normscope.files import is_altered, signed

FORMAT, VERSION = "normscope corpus", 1
RECORD_NAME = "corpus.json"
DTYPES = ("uint8", "uint16", "uint32")

Setting = str | int | float | None


@dataclass(frozen=True)
class PartRecord:
    """One part, training or validation.

    Args:
        tokens: how many, with the ends of documents.
        bytes: of text, in UTF-8, without the ends.
        documents: how many have text in this part.
        sha256: the checksum of its file.
    """

    tokens: int
    bytes: int
    documents: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """All that corpus.json says.

    Args:
        tokenizer: its kind.
        vocab_size: how many tokens it has.
        dtype: the type of the numbers in the files.
        tokenizer_sha256: the checksum of tokenizer.json.
        train, validation: the parts.
        sources: the files that were read, as they were; none for the built-in stories.
        settings: what was asked for.
        notices: what the user should know.
        floor_bits_per_byte: what the source of the text itself needs for the validation text, in bits a byte. No model
            can be expected to need less. None where nobody knows it: of all texts but the built-in stories.
        expected_floor_bits_per_byte: the same on average over all texts of that source.
    """

    tokenizer: str
    vocab_size: int
    dtype: str
    tokenizer_sha256: str
    train: PartRecord
    validation: PartRecord
    sources: tuple[Fingerprint, ...] = ()
    settings: Mapping[str, Setting]
    notices: tuple[str, ...] = ()
    floor_bits_per_byte: float | None = None
    expected_floor_bits_per_byte: float | None = None

    def to_json(self) -> str:
        content = signed({"format": FORMAT, "version": VERSION, **asdict(self)})
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_record(path: Path) -> CorpusRecord:
    """What a corpus.json says; anything else is refused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise _damaged(path, f"it cannot be read: {error}") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileError(f"{path} is not a corpus of normscope's\nfix: name a folder that was prepared by it")
    if content.get("version") != VERSION:
        raise FileError(
            f"{path} has version {content.get('version')!r} of the format, but version {VERSION} is known here\n"
            f"fix: prepare the corpus anew, or use the normscope that wrote it"
        )
    if is_altered(content):
        raise _damaged(path, "its checksum is not the one it was written with")
    try:
        return _record(content)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"something is missing or wrong in it: {error}") from None


def _record(content: dict[str, Any]) -> CorpusRecord:
    settings = _take(content, "settings", dict)
    for name in settings:
        _take(settings, name, *get_args(Setting))
    record = CorpusRecord(
        tokenizer=_take(content, "tokenizer", str),
        vocab_size=_take(content, "vocab_size", int),
        dtype=_take(content, "dtype", str),
        tokenizer_sha256=_take(content, "tokenizer_sha256", str),
        train=_part(_take(content, "train", dict)),
        validation=_part(_take(content, "validation", dict)),
        sources=tuple(_fingerprint(source) for source in _take(content, "sources", list)),
        settings=settings,
        notices=tuple(str(notice) for notice in _take(content, "notices", list)),
        floor_bits_per_byte=_take(content, "floor_bits_per_byte", float, type(None)),
        expected_floor_bits_per_byte=_take(content, "expected_floor_bits_per_byte", float, type(None)),
    )
    if record.dtype not in DTYPES:
        raise ValueError(f"dtype {record.dtype!r}")
    return record


def _part(content: dict[str, Any]) -> PartRecord:
    tokens, size, documents = (_take(content, name, int) for name in ("tokens", "bytes", "documents"))
    return PartRecord(tokens, size, documents, _take(content, "sha256", str))


def _fingerprint(content: dict[str, Any]) -> Fingerprint:
    name, path, sha256 = (_take(content, name, str) for name in ("name", "path", "sha256"))
    return Fingerprint(name, path, _take(content, "size", int), _take(content, "mtime_ns", int), sha256)


def _take(content: dict[str, Any], name: str, *kinds: type) -> Any:
    value = content[name]
    if not isinstance(value, kinds):
        raise TypeError(f"{name!r} is {value!r:.40}")
    return value


def _damaged(path: Path, why: str) -> FileError:
    return FileError(f"{path} is damaged: {why}\nfix: prepare the corpus anew")
