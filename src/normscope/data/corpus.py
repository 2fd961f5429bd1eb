"""A prepared folder, opened: tokens to train on and tokens to validate with."""

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
    """The file of a part."""
    return f"{part}.bin"


@dataclass(frozen=True)
class Corpus:
    """A corpus, ready to be learnt from.

    Args:
        folder: where it is.
        tokenizer: between its text and its tokens.
        train: the tokens to learn from.
        validation: the tokens that are held out.
        record: what else is known of it: counts, checksums, sources and settings.
    """

    folder: Path
    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile
    record: CorpusRecord

    @property
    def notices(self) -> tuple[str, ...]:
        """What its user should know."""
        return self.record.notices

    @property
    def floor_bits_per_byte(self) -> float | None:
        """The least that the validation text can be expected to need, if it is known."""
        return self.record.floor_bits_per_byte


def open_corpus(folder: str | Path, *, verify: bool | Collection[CorpusPart] = False) -> Corpus:
    """The corpus in a folder that `prepare` wrote.

    Sizes are checked always; `verify=True` reads every byte and checks it too, or those of the parts that are named.
    """
    if isinstance(verify, str) or not isinstance(verify, Collection):
        check_flags(verify=verify)
        verify = PARTS if verify else ()
    folder = as_path(folder, "a corpus")
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}\nfix: prepare a corpus there first")
    if not (folder / RECORD_NAME).is_file():
        begun = any((folder / part_name(part)).exists() for part in PARTS)
        problem = "is not whole: its preparation did not come to an end" if begun else "is not a prepared corpus"
        raise FileError(f"{folder} {problem} (it has no {RECORD_NAME})\nfix: prepare the corpus anew")
    record = read_record(folder / RECORD_NAME)
    tokenizer = _tokenizer(folder / TOKENIZER_NAME, record)
    train = _tokens(folder / part_name("train"), record.train, record.dtype, "train" in verify)
    validation = _tokens(folder / part_name("validation"), record.validation, record.dtype, "validation" in verify)
    return Corpus(folder, tokenizer, train, validation, record)


def _tokenizer(path: Path, record: CorpusRecord) -> Tokenizer:
    _check_there(path)
    if file_sha256(path) != record.tokenizer_sha256:
        raise _not_the_same(path, "its checksum is not the one in")
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size != record.vocab_size or tokenizer.dtype.name != record.dtype:
        raise _not_the_same(path, f"it has {tokenizer.vocab_size} tokens, not the {record.vocab_size} of")
    return tokenizer


def _tokens(path: Path, part: PartRecord, dtype: str, verify: bool) -> TokenFile:
    _check_there(path)
    file = TokenFile(path, dtype, part.bytes)
    if len(file) != part.tokens:
        how = "truncated" if len(file) < part.tokens else "too long"
        raise _not_the_same(path, f"it is {how}: it has {len(file)} tokens, not the {part.tokens} of")
    if verify and file_sha256(path) != part.sha256:
        raise _not_the_same(path, "its checksum is not the one in")
    return file


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise FileError(f"{path} is missing\nfix: prepare the corpus anew")


def _not_the_same(path: Path, why: str) -> FileError:
    return FileError(f"{path} is damaged or was altered: {why} {RECORD_NAME}\nfix: prepare the corpus anew")
