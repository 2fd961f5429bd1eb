"""The built-in stories as a corpus: text without end, and the least that a model can need for it is known."""

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
class _Told:
    """How much has been told, and what it cost the teller."""

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
    """Write the built-in stories to a folder, as `prepare` does a user's text.

    The validation stories come from a series of their own, which no training text of any seed has a part in. The record
    says how many bits a byte the teller itself needs for them: a model's loss comes down to this floor, not below it.

    Args:
        folder: where the corpus goes.
        size_bytes, validation_bytes: how much to tell, to the end of the story in which that is reached.
        seed: of the stories.
        tokenizer, vocab_size: as in `prepare`.
        progress: is told how many bytes have been told, of how many.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     corpus = prepare_stories(folder, size_bytes=5000, validation_bytes=2000)
    >>> 0 < corpus.floor_bits_per_byte < 1
    True
    """
    check_positive_int(size_bytes=size_bytes, validation_bytes=validation_bytes)
    check_seed(seed=seed)
    if 2 * seed + 1 >= SEED_LIMIT:
        raise ConfigError(
            f"seed={seed} must be below 2^63 for the stories: each seed has two series\nfix: a smaller one"
        )
    check_tokenizer_option(tokenizer, vocab_size)
    with temporary_folder(folder) as place:
        files = [SourceFile(part, place / f"{part}.jsonl", "jsonl") for part in PARTS]
        total = size_bytes + validation_bytes
        # Even series are for training and odd ones for validation.
        trained = _tell(files[0].path, 2 * seed, size_bytes, 0, total, progress)
        held_out = _tell(files[1].path, 2 * seed + 1, validation_bytes, trained.bytes, total, progress)
        seen = text_statistics(SourceReader(files, passes=1).pieces())

        def texts() -> AssignedText:
            return (
                (part, text)
                for part, file in zip(PARTS, files, strict=True)
                for text in SourceReader([file], 1).pieces()
            )

        chosen, notices = choose_tokenizer(tokenizer, vocab_size, seen, texts, texts)
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


def _tell(path: Path, series: int, size: int, before: int, total: int, progress: Progress | None) -> _Told:
    """Write stories to a file, one a line; reading them again is faster than telling them again."""
    told, nats = 0, 0.0
    with AtomicFile(path) as file:
        for story in stories(series):
            file.write(json.dumps({"text": story.text}).encode() + b"\n")
            told += len(story.text.encode())
            nats += story.nats
            if progress is not None:
                progress(min(before + told, total), total)
            if told >= size:
                break
    return _Told(told, nats)
