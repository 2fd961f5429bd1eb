"""corpus.json: what a prepared folder holds, and where it came from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from normscope.data.source_fingerprints import SourceFingerprint
from normscope.errors import FileError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import LARGE_FILE_BYTES, convert, read_json, without_checksum

FORMAT, VERSION = "normscope corpus", 1
RECORD_NAME = "corpus.json"
Dtype = Annotated[str, Meta(pattern="^uint(8|16|32)$")]
Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
SettingValue = str | bool | int | float | None
_FIX = "prepare the corpus anew"


@dataclass(frozen=True)
class PartRecord:
    """One part, training or validation.

    Args:
        tokens: how many, with the ends of documents.
        bytes: of text, in UTF-8, without the ends.
        documents: how many have text in this part.
        sha256: the checksum of its file.
    """

    tokens: Count
    bytes: Count
    documents: Count
    sha256: Sha256


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
    vocab_size: Annotated[int, Meta(ge=1)]
    dtype: Dtype
    tokenizer_sha256: Sha256
    train: PartRecord
    validation: PartRecord
    sources: tuple[SourceFingerprint, ...] = ()
    settings: Mapping[str, SettingValue]
    notices: tuple[str, ...] = ()
    floor_bits_per_byte: float | None = None
    expected_floor_bits_per_byte: float | None = None

    def to_json(self) -> str:
        content = with_checksum({"format": FORMAT, "version": VERSION, **asdict(self)})
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_record(path: Path) -> CorpusRecord:
    """What a corpus.json says; anything else is refused."""
    content = read_json(path, dict[str, Any], fix=_FIX, max_bytes=LARGE_FILE_BYTES)
    if content.get("format") != FORMAT:
        raise FileError(f"{path} is not a corpus of normscope's\nfix: name a folder that was prepared by it")
    if content.get("version") != VERSION:
        raise FileError(
            f"{path} has version {content.get('version')!r:.40} of the format, but version {VERSION} is known here\n"
            f"fix: prepare the corpus anew, or use the normscope that wrote it"
        )
    content = without_checksum(content, name=str(path), fix=_FIX)
    del content["format"], content["version"]
    names = {field.name for field in fields(CorpusRecord)}
    if content.keys() != names:
        wrong = ", ".join(sorted(content.keys() ^ names))
        raise FileError(f"{path} is not valid: {wrong:.60} is missing, or not known here\nfix: {_FIX}")
    return convert(content, CorpusRecord, name=str(path), fix=_FIX)
