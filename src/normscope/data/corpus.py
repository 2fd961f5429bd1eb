"""A prepared corpus: tokenizer, training tokens, validation tokens, and corpus.json, its contents and provenance."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from normscope.checks import as_path, check_flags
from normscope.data.sources import SourceFingerprint, file_sha256
from normscope.data.split import PARTS, CorpusPart
from normscope.data.token_file import TokenFile
from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import FileError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import LARGE_FILE_BYTES, MAX_TOKENIZER_BYTES, JsonSource, read_json

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
        marks_sha256: checksum of the file of marks; None for plain text, which has none.
        trained_tokens: number of tokens that the assistant writes; None for plain text, of which every token counts.
            `bytes` counts their text.
    """

    tokens: Count
    bytes: Count
    documents: Count
    sha256: Sha256
    marks_sha256: Sha256 | None = None
    trained_tokens: Count | None = None

    @property
    def bytes_per_token(self) -> float:
        """Mean length of the tokens that a model is trained to write."""
        return self.bytes / max(1, self.tokens if self.trained_tokens is None else self.trained_tokens)


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
    source = JsonSource(path, _FIX)
    content = source.without_checksum(content)
    del content["format"], content["version"]
    if unknown := content.keys() - {field.name for field in fields(CorpusRecord)}:
        raise source.problem(f"is not valid: unknown field {', '.join(sorted(unknown)):.60}")
    return source.convert(content, CorpusRecord)  # fields of a later version have defaults


TOKENIZER_NAME = "tokenizer.json"


def part_name(part: CorpusPart) -> str:
    """Return the file name of a part."""
    return f"{part}.bin"


def marks_name(part: CorpusPart) -> str:
    """Return the name of the file that has a mark for each token of a conversation."""
    return f"{part}-marks.bin"


IS_TRAINED, IS_START = 1, 2
"""Marks of a token, one byte: the assistant writes it; a conversation starts with it."""


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Args:
        folder: its folder.
        tokenizer: its tokenizer.
        train: training tokens.
        validation: held-out tokens.
        record: counts, checksums, sources and settings (corpus.json).
        marks: of conversations, the marks of the tokens of each part; None for plain text.
    """

    folder: Path
    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile
    record: CorpusRecord
    marks: Mapping[CorpusPart, TokenFile] | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings for the user."""
        return self.record.notices

    @property
    def floor_bits_per_byte(self) -> float | None:
        """Entropy of the validation text in bits per byte, if known: the lowest loss that a model can reach."""
        return self.record.floor_bits_per_byte


def open_corpus(folder: str | Path, *, verify: bool | Collection[CorpusPart] = False) -> Corpus:
    """Open a corpus that `prepare` wrote.

    Args:
        folder: its folder.
        verify: also compare the checksums of the token files (True: all parts). Sizes are always checked.
    """
    if isinstance(verify, str) or not isinstance(verify, Collection):
        check_flags(verify=verify)
        verify = PARTS if verify else ()
    folder = as_path(folder, "a corpus")
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}\nfix: run `normscope prepare` first")
    if not (folder / RECORD_NAME).is_file():
        interrupted = any((folder / part_name(part)).exists() for part in PARTS)
        problem = "is incomplete: its preparation was interrupted" if interrupted else "is not a prepared corpus"
        raise FileError(f"{folder} {problem} ({RECORD_NAME} is missing)\nfix: prepare the corpus again")
    record = read_record(folder / RECORD_NAME)
    tokenizer = _tokenizer(folder / TOKENIZER_NAME, record)
    train = _tokens(folder / part_name("train"), record.train, record.dtype, "train" in verify)
    validation = _tokens(folder / part_name("validation"), record.validation, record.dtype, "validation" in verify)
    return Corpus(folder, tokenizer, train, validation, record, _marks(folder, record, verify))


def _marks(folder: Path, record: CorpusRecord, verify: Collection[CorpusPart]) -> dict[CorpusPart, TokenFile] | None:
    parts: dict[CorpusPart, PartRecord] = {"train": record.train, "validation": record.validation}
    if any(part.marks_sha256 is None for part in parts.values()):
        return None
    files = {}
    for name, part in parts.items():
        expected = replace(part, sha256=part.marks_sha256 or "")
        files[name] = _tokens(folder / marks_name(name), expected, "uint8", name in verify)
    return files


def _tokenizer(path: Path, record: CorpusRecord) -> Tokenizer:
    _check_there(path)
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:  # a sparse file of a terabyte, say, whose checksum would take hours
        raise _mismatch(path, f"it has {size:,} bytes, too many for the tokenizer of")
    if file_sha256(path) != record.tokenizer_sha256:
        raise _mismatch(path, "its checksum differs from")
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size != record.vocab_size or tokenizer.dtype.name != record.dtype:
        raise _mismatch(path, f"it has {tokenizer.vocab_size} tokens, not {record.vocab_size} as in")
    return tokenizer


def _tokens(path: Path, part: PartRecord, dtype: str, verify: bool) -> TokenFile:
    _check_there(path)
    file = TokenFile(path, dtype, part.bytes)
    if len(file) != part.tokens:
        how = "truncated" if len(file) < part.tokens else "too long"
        raise _mismatch(path, f"it is {how}: it has {len(file)} tokens, not {part.tokens} as in")
    if verify and file_sha256(path) != part.sha256:
        raise _mismatch(path, "its checksum differs from")
    return file


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise FileError(f"{path} is missing\nfix: prepare the corpus again")


def _mismatch(path: Path, why: str) -> FileError:
    return FileError(f"{path} is damaged or was modified: {why} {RECORD_NAME}\nfix: prepare the corpus again")
