"""Write a prepared corpus: token files, tokenizer and, last, the record that marks it as complete."""

import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from normscope.data.corpus import (
    RECORD_NAME,
    TOKENIZER_NAME,
    Corpus,
    CorpusRecord,
    PartRecord,
    SettingValue,
    marks_name,
    open_corpus,
    part_name,
)
from normscope.data.sources import SourceFingerprint, file_sha256
from normscope.data.split import PARTS, AssignedText, CorpusPart
from normscope.data.tokenizers.base import Tokenizer, Tokens, split_special
from normscope.errors import FileError
from normscope.storage.files import AtomicFile, make_folder, write_atomically, write_error
from normscope.storage.lock import try_locked

_PREFIX = ".preparing-"
_BATCH_CHARACTERS = 2**18
"""Characters that are tokenized together: enough to use several cores, with little memory."""


class _PartWriter:
    """Writes the token file of one part."""

    def __init__(self, file: AtomicFile, tokenizer: Tokenizer) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._dtype = tokenizer.dtype.newbyteorder("<")
        # Without an end-of-text token, documents follow each other directly.
        self._eos = np.array([tokenizer.eos_token_id] if tokenizer.has_eos else [], dtype=self._dtype)
        self._start = tokenizer.with_start
        self._tokens = self._bytes = self._documents = 0
        self._ended, self._started = False, False

    def add(self, tokens: Tokens, text: str) -> None:
        """Write tokens; `text` is their text without special tokens."""
        self._bytes += len(text.encode())
        ends = np.isin(tokens, self._eos)
        self._documents += int(ends.sum())  # 0 unless the text may contain special tokens
        if not self._started and len(tokens):  # a document may come in several texts
            tokens = self._start(tokens)
        self._ended = bool(len(ends)) and bool(ends[-1])
        self._started = not self._ended
        self._write(tokens)

    def end_document(self) -> None:
        if self._ended:  # by a special token in the text
            return
        self._documents += 1
        self._ended, self._started = True, False
        self._write(self._eos)

    def record(self) -> PartRecord:
        documents = max(1, self._documents)  # a single text may have no end marker
        return PartRecord(self._tokens, self._bytes, documents, self._digest.hexdigest())

    def _write(self, tokens: Tokens) -> None:
        data = tokens.astype(self._dtype).tobytes()
        self._tokens += len(tokens)
        self._digest.update(data)
        self._file.write(data)


def write_corpus(
    folder: Path,
    assigned: AssignedText,
    tokenizer: Tokenizer,
    *,
    settings: Mapping[str, SettingValue],
    special: Collection[str] = (),
    sources: tuple[SourceFingerprint, ...] = (),
    notices: tuple[str, ...] = (),
    floor: float | None = None,
    expected_floor: float | None = None,
) -> Corpus:
    """Write a prepared corpus. An existing one in the folder stays complete until the new one is on disk.

    `special` are the strings in the text that are parsed as special tokens.
    """
    with temporary_folder(folder) as temporary:
        with ExitStack() as files:
            writers = {
                part: _PartWriter(files.enter_context(AtomicFile(temporary / part_name(part))), tokenizer)
                for part in PARTS
            }
            _write_tokens(assigned, tokenizer, writers, special)
        tokenizer.save(temporary / TOKENIZER_NAME)
        record = CorpusRecord(
            tokenizer=tokenizer.kind,
            vocab_size=tokenizer.vocab_size,
            dtype=tokenizer.dtype.name,
            tokenizer_sha256=file_sha256(temporary / TOKENIZER_NAME),
            train=writers["train"].record(),
            validation=writers["validation"].record(),
            sources=sources,
            settings=settings,
            notices=(*notices, *tokenizer.notices),
            floor_bits_per_byte=floor,
            expected_floor_bits_per_byte=expected_floor,
        )
        write_atomically(temporary / RECORD_NAME, record.to_json())
        move_corpus(temporary, folder, tuple(map(part_name, PARTS)))
    return open_corpus(folder)


def _write_tokens(
    assigned: AssignedText, tokenizer: Tokenizer, writers: Mapping[CorpusPart, _PartWriter], special: Collection[str]
) -> None:
    for batch in _batches(assigned):
        texts = [text for _, text in batch if text is not None]
        encoded = iter(tokenizer.encode_many(texts, allow_special=bool(special)))
        for part, text in batch:
            if text is None:
                writers[part].end_document()
            else:
                plain = "".join(piece for piece in split_special(text, special) if piece not in special)
                writers[part].add(next(encoded), plain)


def _batches(assigned: AssignedText) -> Iterator[list[tuple[CorpusPart, str | None]]]:
    """Group texts that are tokenized together."""
    batch, size = list[tuple[CorpusPart, str | None]](), 0
    for part, text in assigned:
        batch.append((part, text))
        size += 1 if text is None else len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def move_corpus(temporary: Path, folder: Path, names: Collection[str]) -> None:
    """Move the new files into the folder. The record is removed first, so that an interrupted move is detected."""
    try:
        (folder / RECORD_NAME).unlink(missing_ok=True)
        for name in (*names, TOKENIZER_NAME, RECORD_NAME):
            (temporary / name).replace(folder / name)
    except OSError as error:
        raise write_error(folder / RECORD_NAME, error) from error


def check_output_folder(folder: str | Path) -> None:
    """Raise if writing a corpus to this folder would overwrite files or mix with unrelated ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output_folder(folder)
    ...     size = (Path(folder) / "notes.txt").write_text("mine")
    ...     try:
    ...         check_output_folder(folder)
    ...     except FileError as error:
    ...         print(str(error).replace(folder, "FOLDER"))
    FOLDER is not empty: it contains notes.txt
    fix: choose a new folder with --out
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    if RECORD_NAME in names:
        raise FileError(
            f"{folder} already holds a prepared corpus, which runs may depend on\n"
            f"fix: name another folder with --out, or delete this one if no run needs it"
        )
    leftovers = {TOKENIZER_NAME, *map(part_name, PARTS), *map(marks_name, PARTS)}  # the record is written last
    unrelated = [name for name in names if name not in leftovers and not name.startswith(".")]
    if unrelated:
        raise FileError(
            f"{folder} is not empty: it contains {', '.join(unrelated[:3])}\nfix: choose a new folder with --out"
        )


@contextmanager
def temporary_folder(folder: str | Path) -> Iterator[Path]:
    """Create a hidden temporary folder inside `folder` (on the same disk), and remove it at the end of the block.

    A killed process leaves its temporary folder behind; the next call in the same folder removes it. Locks tell the two
    apart: a temporary folder is locked while its process lives.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with temporary_folder(folder) as temporary:
    ...         size = (temporary / "half.bin").write_bytes(b"half")
    ...     list(Path(folder).iterdir())
    []
    """
    folder = make_folder(folder)
    with ExitStack() as held:
        with try_locked(folder, wait=True):  # otherwise another process could remove a folder that is not locked yet
            _remove_abandoned(folder)
            try:
                temporary = Path(held.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=_PREFIX)))
            except OSError as error:
                raise write_error(folder / _PREFIX, error) from error
            held.enter_context(try_locked(temporary))
        yield temporary


def _remove_abandoned(folder: Path) -> None:
    for temporary in folder.glob(f"{_PREFIX}*"):
        with try_locked(temporary) as abandoned:
            if abandoned:
                shutil.rmtree(temporary, ignore_errors=True)
