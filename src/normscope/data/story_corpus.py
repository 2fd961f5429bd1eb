"""Prepare the built-in stories as a corpus whose entropy is known."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from normscope.checks import SEED_LIMIT, check_positive_int, check_seed
from normscope.data.corpus import Corpus
from normscope.data.source_reader import Progress, SourceReader
from normscope.data.sources import SourceFile
from normscope.data.split import PARTS, AssignedText
from normscope.data.stories import entropy_floor, stories
from normscope.data.temporary_folder import temporary_folder
from normscope.data.text_statistics import text_statistics
from normscope.data.tokenizers.choose import check_tokenizer_option, choose_tokenizer
from normscope.data.write_corpus import write_corpus
from normscope.errors import ConfigError
from normscope.storage.files import AtomicFile


@dataclass(frozen=True)
class _Generated:
    """Size and cost of generated stories."""

    bytes: int
    nats: float


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
        trained = _write_stories(files[0].path, 2 * seed, size_bytes, 0, total, progress)
        held_out = _write_stories(files[1].path, 2 * seed + 1, validation_bytes, trained.bytes, total, progress)
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
            floor=held_out.nats / math.log(2) / held_out.bytes,
            expected_floor=entropy_floor().bits_per_byte,
        )


def _write_stories(path: Path, seed: int, size: int, before: int, total: int, progress: Progress | None) -> _Generated:
    """Write stories to a .jsonl file: reading them again is faster than generating them again."""
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
    return _Generated(written, nats)
