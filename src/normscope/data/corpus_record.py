"""corpus.json: the contents and provenance of a prepared corpus."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from normscope.data.source_fingerprints import SourceFingerprint
from normscope.errors import FileError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import LARGE_FILE_BYTES, JsonSource, read_json

FORMAT, VERSION = "normscope corpus", 1
RECORD_NAME = "corpus.json"
Dtype = Annotated[str, Meta(pattern="^uint(8|16|32)$")]
Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
SettingValue = str | bool | int | float | None
_FIX = "prepare the corpus again"


@dataclass(frozen=True)
class PartRecord:
    """One part, training or validation.

    Args:
        tokens: number of tokens, including end-of-text tokens.
        bytes: UTF-8 bytes of text, without end-of-text tokens.
        documents: number of documents with text in this part.
        sha256: checksum of the file.
    """

    tokens: Count
    bytes: Count
    documents: Count
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """The contents of corpus.json.

    Args:
        tokenizer: kind of tokenizer.
        vocab_size: vocabulary size.
        dtype: dtype of the token files.
        tokenizer_sha256: checksum of tokenizer.json.
        train, validation: the parts.
        sources: fingerprints of the source files; empty for the built-in stories.
        settings: arguments of `prepare`.
        notices: warnings for the user.
        floor_bits_per_byte: entropy of the validation text under its true distribution, in bits per byte: the lowest
            loss that a model can be expected to reach. Known for the built-in stories only, otherwise None.
        expected_floor_bits_per_byte: the same, averaged over all texts of that distribution.
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
    """Read and validate a corpus.json."""
    content = read_json(path, dict[str, Any], fix=_FIX, max_bytes=LARGE_FILE_BYTES)
    if content.get("format") != FORMAT:
        raise FileError(f"{path} is not a normscope corpus\nfix: name a folder that `normscope prepare` wrote")
    if content.get("version") != VERSION:
        raise FileError(
            f"{path} has format version {content.get('version')!r:.40}, but this normscope reads version {VERSION}\n"
            f"fix: prepare the corpus again, or use the normscope version that wrote it"
        )
    content = JsonSource(path, _FIX).without_checksum(content)
    del content["format"], content["version"]
    names = {field.name for field in fields(CorpusRecord)}
    if content.keys() != names:
        wrong = ", ".join(sorted(content.keys() ^ names))
        raise FileError(f"{path} is not valid: missing or unknown field {wrong:.60}\nfix: {_FIX}")
    return JsonSource(path, _FIX).convert(content, CorpusRecord)
