"""Choose a tokenizer by kind, by file, or automatically."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal, get_args

from normscope.data.documents import TextStatistics
from normscope.data.split import AssignedText
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE, EOS_NAMES, Tokenizer, check_vocab_size, split_special
from normscope.data.tokenizers.characters import ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import ConfigError

AUTO = "auto"
TokenizerKind = Literal["auto", "characters", "bytes", "bpe"]
KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)
_SAMPLE = 2000

BYTES_PER_TOKEN = 64
"""Bytes of text per BPE token for "auto". Bits per byte, best of 200 steps of `--depth 2`, on English.
5 KB: characters 3.27, 300 tokens 3.58, 1,145 tokens 4.91. 50 KB: characters 2.61, 512 tokens 2.51, 1,024 tokens 2.48,
2,048 tokens 2.53 (2.90 at the end). 500 KB: 2,048 tokens are best. Code behaves the same."""
MIN_BPE_TOKENS = 300
"""A smaller BPE vocabulary is hardly more than bytes; characters are as good and never yield partial characters."""
TOKENS_PER_WIDE_CHARACTER = 4
"""BPE must first merge the bytes of multi-byte characters. With fewer tokens per such character than this, rare ones
stay split into bytes, and a model generates invalid characters. On 50 KB of Chinese, characters reach 2.89 bits per
byte, and 2,048 tokens 3.13 with 2% invalid characters; on 500 KB of Japanese, tokens are ahead,
1.36 to 1.50, with 1% invalid."""
MAX_ASCII_BYTES_PER_CHARACTER = 1.2
"""Mean bytes per character up to which a text counts as mostly ASCII."""
MAX_ALPHABET = 8192
"""With a larger alphabet, the embedding would dominate a small model."""


def check_tokenizer_option(tokenizer: str | Path, vocab_size: int | None) -> None:
    """Raise for options that would fail later, before anything is read."""
    if trains_bpe(tokenizer, vocab_size) and vocab_size is not None:
        check_vocab_size(vocab_size)
    elif vocab_size is not None:
        raise ConfigError(
            f"vocab_size={vocab_size!r} is for the tokenizer 'bpe': {str(tokenizer)!r} has a fixed vocabulary\n"
            f"fix: leave vocab_size out, or tokenizer='bpe'"
        )
    if not isinstance(tokenizer, str) or tokenizer not in KINDS:
        load_tokenizer(tokenizer)


def trains_bpe(tokenizer: str | Path, vocab_size: int | None) -> bool:
    """Whether BPE is trained: requested by name, or by a vocabulary size."""
    return tokenizer == "bpe" or (tokenizer == AUTO and vocab_size is not None)


def special_names(tokenizer: str | Path) -> tuple[str, ...]:
    """Return the names of the special tokens that a text may contain."""
    return EOS_NAMES if tokenizer in KINDS else tuple(load_tokenizer(tokenizer).special_tokens)


def choose_tokenizer(
    tokenizer: str | Path,
    vocab_size: int | None,
    statistics: TextStatistics,
    texts: Callable[[], AssignedText],
    preview: Callable[[], AssignedText],
    special: Collection[str] = (),
) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer, and notices for the user.

    Args:
        tokenizer: "auto", "characters", "bytes", "bpe", or the path of a tokenizer.json.
        vocab_size: vocabulary size of "bpe".
        statistics: of the whole corpus, including validation, so that all of it can be encoded.
        texts: reads the whole corpus; "bpe" trains on the training part only.
        preview: reads the corpus lazily; a tokenizer from a file is tried on its beginning.
        special: names of special tokens in the text.
    """
    notices = []
    if tokenizer == AUTO and vocab_size is None:
        vocab_size, why = default_vocab_size(statistics)
        notices = [why] if why else []
        tokenizer = "characters" if vocab_size is None else "bpe"
    if tokenizer == "characters":
        return CharacterTokenizer(statistics.alphabet), notices
    if tokenizer == "bytes":
        return ByteTokenizer(), notices
    if not trains_bpe(tokenizer, vocab_size):
        chosen = load_tokenizer(tokenizer)
        return chosen, _round_trip_notice(chosen, str(tokenizer), next(_training(preview)))
    from normscope.data.tokenizers.huggingface import train_bpe

    wanted = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    plain = (part for text in _training(texts) for part in split_special(text, special) if part not in special)
    trained = train_bpe(plain, wanted)
    if trained.vocab_size != wanted:
        notices.append(f"the text is too short for vocab_size={wanted}: the vocabulary has {trained.vocab_size} tokens")
    return trained, notices


def default_vocab_size(statistics: TextStatistics) -> tuple[int | None, str]:
    """Return the BPE vocabulary size for a text, or None for characters; and why it is not the default.

    >>> default_vocab_size(TextStatistics(1, 4_000_000, 4_000_000, 0, "abc"))
    (2048, '')
    >>> [default_vocab_size(TextStatistics(1, size, size, 0, "abc"))[0] for size in (50_000, 5000)]
    [781, None]
    """
    size = min(DEFAULT_VOCAB_SIZE, statistics.bytes // BYTES_PER_TOKEN)
    wide = sum(not character.isascii() for character in statistics.alphabet)
    too_many_wide = (
        statistics.bytes > MAX_ASCII_BYTES_PER_CHARACTER * statistics.characters
        and TOKENS_PER_WIDE_CHARACTER * wide > size
    )
    if (size < MIN_BPE_TOKENS or too_many_wide) and len(statistics.alphabet) <= MAX_ALPHABET:
        why = f"it has {wide:,} multi-byte characters" if size >= MIN_BPE_TOKENS else "the text is short"
        return None, (
            f"tokenizer: characters ({len(statistics.alphabet):,}), because {why}; prompts cannot "
            "contain other characters. Use --tokenizer bpe to encode any text"
        )
    if size < DEFAULT_VOCAB_SIZE:
        size = max(size, MIN_BPE_TOKENS)
        return size, f"tokenizer: bpe with {size:,} tokens, because the text is short; --vocab-size overrides it"
    return size, ""


def _training(texts: Callable[[], AssignedText]) -> Iterator[str]:
    return (text for part, text in texts() if part == "train" and text is not None)


def _round_trip_notice(tokenizer: Tokenizer, name: str, text: str) -> list[str]:
    """Return a notice if the tokenizer does not round-trip the text; one that lowercases does not."""
    sample = text[:_SAMPLE]
    got = tokenizer.decode(tokenizer.encode(sample))
    if got == sample:
        return []
    position = next(
        (i for i, (a, b) in enumerate(zip(sample, got, strict=False)) if a != b), min(len(sample), len(got))
    )
    was, became = (repr(part[max(0, position - 10) : position + 10]) for part in (sample, got))
    return [f"the tokenizer {name} is lossy: {was} becomes {became}; the model will learn the latter"]
