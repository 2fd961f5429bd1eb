"""Prepare a corpus, from text or from the built-in stories: split, tokenize and write to a folder."""

import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from normscope.checks import SEED_LIMIT, as_path, check_flags, check_positive_int, check_seed
from normscope.data.conversations.prepare import are_conversations, prepare_conversations
from normscope.data.corpus import Corpus, SettingValue
from normscope.data.documents import text_statistics
from normscope.data.readers import Progress, SourceReader
from normscope.data.sources import STDIN, SourceFile, find_sources, source_names
from normscope.data.split import PARTS, AssignedText, check_split, choose_split
from normscope.data.stories import entropy_floor, stories
from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.characters import ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.choose import AUTO, KINDS, check_tokenizer_option, choose_tokenizer, special_names
from normscope.data.tokenizers.load import load_tokenizer
from normscope.data.write_corpus import temporary_folder, write_corpus
from normscope.errors import ConfigError
from normscope.storage.files import AtomicFile, os_errors

_SMALL_CORPUS = 100_000


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
    """Read text, split it, tokenize it and write it to a folder. The text may be larger than memory.

    Writes train.bin, validation.bin, tokenizer.json and, last, corpus.json. An existing corpus is replaced once the
    new one is complete.

    Args:
        sources: files, folders, patterns such as "books/*.txt", or "-" for standard input.
        folder: output folder.
        tokenizer: "characters", "bytes", "bpe", the path of a tokenizer.json, or "auto". "auto" chooses bpe, with a
            smaller vocabulary for a short text; characters for a very short text, and for scripts such as Chinese with
            many multi-byte characters.
        vocab_size: vocabulary size of "bpe" (default: 2048).
        column: column of .jsonl and .parquet files that holds the text. A .jsonl file that has "messages" instead is
            read as conversations, of which a model learns what the assistant writes.
        seed: random seed of the split.
        split: "random" holds out random pieces, "tail" the end of the text.
        val_fraction: fraction of the text that is held out (default: 0.1, at most about 1 MB).
        allow_special: parse special tokens such as <|endoftext|> in the text.
        progress: called with the bytes read so far and the total.

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
    with _saved_stdin(folder) if STDIN in map(str, names) else nullcontext() as piped:
        files, notices = find_sources(names, column=column, piped=piped)
        settings: dict[str, SettingValue] = {
            "tokenizer": str(tokenizer),
            "vocab_size": vocab_size,
            "column": column,
            "seed": seed,
            "split": split,
            "val_fraction": val_fraction,
            "allow_special": allow_special,
        }
        if are_conversations(files):
            chosen = _tokenizer_of_conversations(tokenizer)
            return prepare_conversations(
                files, Path(folder), chosen, settings=settings, notices=tuple(notices), progress=progress
            )
        reader = SourceReader(files, passes=3 if tokenizer in ("bpe", AUTO) else 2, progress=progress)
        statistics = text_statistics(reader.pieces())
        chosen_split = choose_split(split, seed, val_fraction, statistics, reader.preview, special)

        def texts() -> AssignedText:
            return chosen_split.assign(reader.pieces())

        def preview() -> AssignedText:
            return chosen_split.assign(reader.preview())

        chosen, more = choose_tokenizer(tokenizer, vocab_size, statistics, texts, preview, special)
        if tokenizer == AUTO and isinstance(chosen, CharacterTokenizer):
            reader.skip_pass()  # characters need no training pass
        if (size := statistics.characters) < _SMALL_CORPUS:
            more.append(
                f"small corpus ({size:,} characters): expect overfitting; add text, or lower --depth or --steps"
            )
        return write_corpus(
            Path(folder),
            texts(),
            chosen,
            special=special,
            settings=settings,
            sources=reader.fingerprints,
            notices=(*notices, *more),
        )


def _tokenizer_of_conversations(tokenizer: str | Path) -> Tokenizer:
    if tokenizer == "bytes":
        return ByteTokenizer()
    if tokenizer in KINDS:
        raise ConfigError(
            f"conversations need a tokenizer that exists, but tokenizer={tokenizer!r} is made from the text\n"
            f"fix: --from SOURCE, which has one; --tokenizer with the path of a tokenizer.json; or --tokenizer bytes"
        )
    return load_tokenizer(tokenizer)


@contextmanager
def _saved_stdin(folder: str | Path) -> Iterator[Path]:
    """Copy standard input to a file: the text is read several times."""
    with temporary_folder(folder) as temporary:
        path = temporary / "stdin.txt"
        with os_errors(f"cannot save standard input in {folder}"), path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield path


def prepare_stories(
    folder: str | Path,
    *,
    size_bytes: int = 4_000_000,
    validation_bytes: int = 200_000,
    seed: int = 0,
    tokenizer: str | Path = "characters",
    vocab_size: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Generate stories and write them to a folder as a prepared corpus.

    Validation stories have their own seeds, which no training corpus uses. The record contains their entropy in bits
    per byte: the lowest loss that a model can reach.

    Args:
        folder: output folder.
        size_bytes, validation_bytes: minimum size of each part; the last story is always complete.
        seed: random seed.
        tokenizer, vocab_size: as in `prepare`.
        progress: called with the bytes generated so far and the total.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     corpus = prepare_stories(folder, size_bytes=5000, validation_bytes=2000)
    >>> 0 < corpus.floor_bits_per_byte < 1
    True
    """
    check_positive_int(size_bytes=size_bytes, validation_bytes=validation_bytes)
    check_seed(seed=seed)
    if 2 * seed + 1 >= SEED_LIMIT:
        raise ConfigError(f"seed={seed} must be below 2^63 for the stories, which use two seeds\nfix: a smaller seed")
    check_tokenizer_option(tokenizer, vocab_size)
    with temporary_folder(folder) as temporary:
        files = [SourceFile(part, temporary / f"{part}.jsonl", "jsonl") for part in PARTS]
        total = size_bytes + validation_bytes
        # Even seeds are for training, odd ones for validation.
        done, _ = _write_stories(files[0].path, 2 * seed, size_bytes, 0, total, progress)
        held_out, nats = _write_stories(files[1].path, 2 * seed + 1, validation_bytes, done, total, progress)
        statistics = text_statistics(SourceReader(files, passes=1).pieces())

        def texts() -> AssignedText:
            return (
                (part, text)
                for part, file in zip(PARTS, files, strict=True)
                for text in SourceReader([file], 1).pieces()
            )

        chosen, notices = choose_tokenizer(tokenizer, vocab_size, statistics, texts, texts)
        return write_corpus(
            Path(folder),
            texts(),
            chosen,
            settings={
                "stories": seed,
                "size_bytes": size_bytes,
                "validation_bytes": validation_bytes,
                "tokenizer": str(tokenizer),
                "vocab_size": vocab_size,
            },
            notices=tuple(notices),
            floor=nats / math.log(2) / held_out,
            expected_floor=entropy_floor().bits_per_byte,
        )


def _write_stories(
    path: Path, seed: int, size: int, before: int, total: int, progress: Progress | None
) -> tuple[int, float]:
    """Write stories to a .jsonl file, from which they are read faster than generated; return their bytes and nats."""
    written, nats = 0, 0.0
    with AtomicFile(path) as file:
        for story in stories(seed):
            file.write(json.dumps({"text": story.text}).encode() + b"\n")
            written += len(story.text.encode())
            nats += story.nats
            if progress is not None:
                progress(min(before + written, total), total)
            if written >= size:
                break
    return written, nats
