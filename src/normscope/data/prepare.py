"""From what a user names to a prepared folder."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from normscope.checks import as_path, check_flags, check_seed, short_repr
from normscope.data.corpus import Corpus
from normscope.data.source_reader import Progress, SourceReader
from normscope.data.sources import STDIN, find_sources
from normscope.data.split import AssignedText, check_split, choose_split
from normscope.data.temporary_folder import temporary_folder
from normscope.data.text_statistics import TextStatistics, text_statistics
from normscope.data.tokenizers.characters import CharacterTokenizer
from normscope.data.tokenizers.choose import AUTO, check_tokenizer_option, choose_tokenizer, special_names
from normscope.data.write_corpus import write_corpus
from normscope.errors import DtypeError, FileError

_LITTLE = 100_000


def source_names(sources: object) -> list[str | Path]:
    """One path, or several, as a list of them; anything else is refused."""
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not isinstance(sources, Iterable):
        raise DtypeError(f"text is read from paths, each a str or a Path, but got {short_repr(sources)}")
    names = list(sources)
    for name in names:
        if name != STDIN:
            as_path(name, "a text")
    return names


def prepare(
    sources: str | Path | Sequence[str | Path],
    folder: str | Path,
    *,
    tokenizer: str | Path = "characters",
    vocab_size: int | None = None,
    column: str = "text",
    seed: int = 0,
    split: Literal["random", "tail"] = "random",
    val_fraction: float | None = None,
    allow_special: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Read text, split it, turn it into tokens, and write these to a folder; a text larger than the memory will do.

    The folder gets train.bin, validation.bin, tokenizer.json and, last, corpus.json. An older corpus in it is replaced
    when the new one is whole.

    Args:
        sources: files, folders, patterns such as "books/*.txt", or "-" for what is piped in.
        folder: where the corpus goes.
        tokenizer: "characters", "bytes", "bpe", the path of a tokenizer.json, or "auto", which takes what suits the
            text: bpe, with fewer tokens for a short text; characters for a very short one, and for Chinese and others
            with many characters of several bytes.
        vocab_size: how many tokens "bpe" learns; 2048 unless told otherwise.
        column: where the text is in .jsonl and .parquet files.
        seed: decides which pieces are held out.
        split: "random" holds out pieces from everywhere, "tail" the end of the text.
        val_fraction: of the text that is held out; by default a tenth, or a megabyte if that is less.
        allow_special: whether <|endoftext|> in the text, and the names of other special tokens, stand for these tokens.
        progress: is told how many bytes have been read, of how many.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = Path(folder) / "song.txt"
    ...     size = text.write_text("Row, row, row your boat,\\n" * 100)
    ...     corpus = prepare(text, Path(folder) / "prepared")
    ...     corpus.tokenizer.vocab_size, len(corpus.train) + len(corpus.validation)
    (13, 2502)
    """
    check_seed(seed=seed)
    check_split(split, val_fraction)
    check_tokenizer_option(tokenizer, vocab_size)
    check_flags(allow_special=allow_special)
    special = special_names(tokenizer) if allow_special else ()
    as_path(folder, "a corpus")
    names = source_names(sources)
    with _piped_in(folder) if STDIN in map(str, names) else nullcontext() as piped:
        files, notices = find_sources(names, column=column, piped=piped)
        reading = SourceReader(files, passes=3 if tokenizer in ("bpe", AUTO) else 2, progress=progress)
        seen = text_statistics(reading.pieces())
        parts = choose_split(split, seed, val_fraction, seen, reading.preview, special)

        def texts() -> AssignedText:
            return parts.assign(reading.pieces())

        def preview() -> AssignedText:
            return parts.assign(reading.preview())

        chosen, more = choose_tokenizer(tokenizer, vocab_size, seen, texts, preview, special)
        if tokenizer == AUTO and isinstance(chosen, CharacterTokenizer):
            reading.skip()  # there was nothing to learn
        return write_corpus(
            Path(folder),
            texts(),
            chosen,
            special=special,
            settings={
                "tokenizer": str(tokenizer),
                "vocab_size": vocab_size,
                "column": column,
                "seed": seed,
                "split": split,
                "val_fraction": val_fraction,
                "allow_special": allow_special,
            },
            sources=reading.fingerprints,
            notices=(*notices, *more, *_if_little(seen)),
        )


@contextmanager
def _piped_in(folder: str | Path) -> Iterator[Path]:
    """What is piped in, as a file: a text is read more than once, and a pipe cannot be."""
    with temporary_folder(folder) as place:
        path = place / "piped.txt"
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            raise FileError(f"cannot keep what is piped in, in {folder}: {error.strerror or error}") from error
        yield path


def _if_little(seen: TextStatistics) -> list[str]:
    if seen.characters >= _LITTLE:
        return []
    return [
        f"the corpus has only {seen.characters:,} characters: a model reads them many times and learns them by heart; "
        f"more text helps, or a smaller model and fewer steps"
    ]
