"""Open a prepared corpus: tokenizer, training tokens and validation tokens."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from normscope.checks import as_path, check_flags
from normscope.data.corpus_record import RECORD_NAME, CorpusRecord, PartRecord, read_record
from normscope.data.source_fingerprints import file_sha256
from normscope.data.split import PARTS, CorpusPart
from normscope.data.token_file import TokenFile
from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import FileError

TOKENIZER_NAME = "tokenizer.json"


def part_name(part: CorpusPart) -> str:
    """Return the file name of a part."""
    return f"{part}.bin"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Args:
        folder: its folder.
        tokenizer: its tokenizer.
        train: training tokens.
        validation: held-out tokens.
        record: counts, checksums, sources and settings (corpus.json).
    """

    folder: Path
    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile
    record: CorpusRecord

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
    return Corpus(folder, tokenizer, train, validation, record)


def _tokenizer(path: Path, record: CorpusRecord) -> Tokenizer:
    _check_there(path)
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
