"""Prepare conversations: render, tokenize and mark them, and write them as a corpus."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.data.conversations.encode import encode_conversation
from normscope.data.conversations.messages import Message, fingerprint, has_conversations, read_conversations
from normscope.data.conversations.template import ChatTemplate
from normscope.data.corpus import (
    IS_START,
    IS_TRAINED,
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
from normscope.data.readers import Progress
from normscope.data.shuffle import hash_key
from normscope.data.sources import SourceFile, SourceFingerprint, file_sha256
from normscope.data.split import PARTS, CorpusPart
from normscope.data.tokenizers.base import Tokenizer, Tokens
from normscope.data.write_corpus import move_corpus, temporary_folder
from normscope.errors import ConfigError, CorpusError, FileError
from normscope.storage.files import AtomicFile, write_atomically

_DEFAULT_FRACTION, _ENOUGH_VALIDATION = 0.1, 500


def are_conversations(sources: Sequence[SourceFile]) -> bool:
    """Whether the sources are conversations; raises if only some are."""
    found = [has_conversations(source) for source in sources]
    if any(found) and not all(found):
        text = next(source.name for source, one in zip(sources, found, strict=True) if not one)
        raise ConfigError(f"{text} has no conversations, but other sources do\nfix: train on one kind at a time")
    return bool(found) and found[0]


def prepare_conversations(
    sources: Sequence[SourceFile],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    settings: Mapping[str, SettingValue],
    notices: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Corpus:
    """Write conversations as a corpus with marks. Each conversation is a document of one part.

    Args:
        sources: .jsonl files with messages.
        folder: output folder.
        tokenizer: its chat template renders the conversations.
        settings: arguments of `prepare`; of them seed, split and val_fraction choose the validation part.
        notices: warnings for the user.
        progress: called with the bytes read so far and the total.
    """
    template = ChatTemplate.of(tokenizer)
    prints: list[SourceFingerprint] = []
    total = sum(1 for _ in _read(sources, prints))
    held_out = _held_out(total, settings)
    with temporary_folder(folder) as temporary:
        with ExitStack() as files:
            writers = {part: _Writer(temporary, part, tokenizer, files) for part in PARTS}
            again: list[SourceFingerprint] = []
            sizes, done = sum(one.size for one in prints), 0
            for number, (source, line, messages) in enumerate(_read(sources, again)):
                part: CorpusPart = "validation" if number in held_out else "train"
                try:
                    tokens, written = encode_conversation(template, tokenizer, messages)
                except ConfigError as error:
                    raise FileError(f"{source.name}, line {line}: {error}") from None
                if not written[1:].any():
                    raise FileError(f"{source.name}, line {line}: the assistant writes nothing\nfix: delete the line")
                writers[part].add(tokens, written)
                done += sum(len(message["content"]) for message in messages)
                if progress is not None:
                    progress(min(done, sizes), sizes)
            if again != prints:
                raise FileError(
                    "a source changed while it was being read\nfix: wait until it is complete, then try again"
                )
        parts = {part: writer.record() for part, writer in writers.items()}
        for part, made in parts.items():
            if not made.bytes:
                raise CorpusError(f"the assistant's replies have no text in the {part} part\nfix: delete empty replies")
        tokenizer.save(temporary / TOKENIZER_NAME)
        record = CorpusRecord(
            tokenizer=tokenizer.kind,
            vocab_size=tokenizer.vocab_size,
            dtype=tokenizer.dtype.name,
            tokenizer_sha256=file_sha256(temporary / TOKENIZER_NAME),
            train=parts["train"],
            validation=parts["validation"],
            sources=tuple(prints),
            settings={**settings, "chat_template": template.source},
            notices=(*notices, *tokenizer.notices),
        )
        write_atomically(temporary / RECORD_NAME, record.to_json())
        move_corpus(temporary, folder, (*map(part_name, PARTS), *map(marks_name, PARTS)))
    return open_corpus(folder)


def _read(
    sources: Sequence[SourceFile], prints: list[SourceFingerprint]
) -> Iterator[tuple[SourceFile, int, list[Message]]]:
    """Yield source, line and messages of each conversation, and collect the fingerprints of the sources."""
    for source in sources:
        digest = hashlib.sha256()
        for line, messages in read_conversations(source, digest):
            yield source, line, messages
        prints.append(fingerprint(source, digest))


def _held_out(total: int, settings: Mapping[str, SettingValue]) -> Collection[int]:
    """The numbers of the conversations for validation: at least one, and not all."""
    if total < 2:
        raise CorpusError(f"{total} conversation: one for training and one for validation are needed\nfix: add more")
    given = settings.get("val_fraction")
    count = min(round(total * _DEFAULT_FRACTION), _ENOUGH_VALIDATION) if given is None else round(total * float(given))
    count = min(max(count, 1), total - 1)
    if settings.get("split") == "tail":
        return range(total - count, total)
    return set(sorted(range(total), key=lambda number: hash_key("split", settings.get("seed"), number))[:count])


class _Writer:
    """Writes the tokens and marks of one part."""

    def __init__(self, folder: Path, part: CorpusPart, tokenizer: Tokenizer, files: ExitStack) -> None:
        self._tokenizer, self._dtype = tokenizer, tokenizer.dtype.newbyteorder("<")
        names = (part_name(part), marks_name(part))
        self._files = [files.enter_context(AtomicFile(folder / name)) for name in names]
        self._digests = [hashlib.sha256(), hashlib.sha256()]
        self._tokens = self._bytes = self._documents = self._trained = 0

    def add(self, tokens: Tokens, written: NDArray[np.bool_]) -> None:
        marks = written.astype(np.uint8) * IS_TRAINED
        marks[0] |= IS_START
        for file, digest, array in zip(self._files, self._digests, (tokens.astype(self._dtype), marks), strict=True):
            file.write(array.tobytes())
            digest.update(array.tobytes())
        self._tokens += len(tokens)
        self._documents += 1
        self._trained += int(written.sum())
        self._bytes += len(self._tokenizer.decode(tokens[written]).encode())

    def record(self) -> PartRecord:
        sums = [digest.hexdigest() for digest in self._digests]
        return PartRecord(self._tokens, self._bytes, self._documents, sums[0], sums[1], self._trained)
