"""The tokenizer that was asked for: by its kind, or by its file."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from normscope.data.split import AssignedText
from normscope.data.text_statistics import TextStatistics
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE, EOS_NAMES, Tokenizer, split_special
from normscope.data.tokenizers.byte_level import ByteTokenizer
from normscope.data.tokenizers.characters import CharacterTokenizer
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import ConfigError

AUTO = "auto"
KINDS = (AUTO, "characters", "bytes", "bpe")
_SAMPLE = 2000

BYTES_PER_TOKEN = 64
"""How much text a token of BPE needs to be learnt from. Bits a byte, at the best of 200 steps of `--depth 2`: with 5 KB
of English characters 3.27, 300 tokens 3.58, 1,145 tokens 4.91; with 50 KB characters 2.61, 512 tokens 2.51, 1,024
tokens 2.48, 2,048 tokens 2.53 (and 2.90 at the end); with 500 KB 2,048 tokens are best. So it is with code."""
MIN_BPE_TOKENS = 300
"""A smaller BPE is hardly more than bytes; characters are as good, and no text from them has half a character in it."""
TOKENS_PER_WIDE_CHARACTER = 4
"""Characters of several bytes are bytes first, which BPE has to put together before anything else. Where the vocabulary
has not this many tokens for each of them, rare ones stay in pieces, and a model writes halves. With 50 KB of Chinese
characters give 2.89 bits a byte, and 2,048 tokens 3.13 with 2% of all characters broken; with 500 KB of Japanese the
tokens are ahead, 1.36 to 1.50, but 1% is still broken."""
MAX_ASCII_BYTES_PER_CHARACTER = 1.2
"""Bytes a character, up to which other characters are too few to decide."""
MAX_ALPHABET = 8192
"""With a larger alphabet most of a small model would be its table of characters."""


def check_tokenizer_option(tokenizer: str | Path, vocab_size: int | None) -> None:
    """Refuse before anything is read what would fail after it."""
    if trains_bpe(tokenizer, vocab_size) and vocab_size is not None:
        from normscope.data.tokenizers.bpe import check_vocab_size

        check_vocab_size(vocab_size)
    elif vocab_size is not None:
        raise ConfigError(
            f"vocab_size={vocab_size!r} is for the tokenizer 'bpe': the size of {str(tokenizer)!r} is what it is\n"
            f"fix: leave vocab_size out, or tokenizer='bpe'"
        )
    if not isinstance(tokenizer, str) or tokenizer not in KINDS:
        load_tokenizer(tokenizer)


def trains_bpe(tokenizer: str | Path, vocab_size: int | None) -> bool:
    """Whether BPE was asked for, by its name or by a size that only it can have."""
    return tokenizer == "bpe" or (tokenizer == AUTO and vocab_size is not None)


def special_names(tokenizer: str | Path) -> tuple[str, ...]:
    """What a text may call special tokens, of a tokenizer that may have to be learnt from it."""
    return EOS_NAMES if tokenizer in KINDS else tuple(load_tokenizer(tokenizer).special_tokens)


def choose_tokenizer(
    tokenizer: str | Path,
    vocab_size: int | None,
    seen: TextStatistics,
    texts: Callable[[], AssignedText],
    preview: Callable[[], AssignedText],
    special: Collection[str] = (),
) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what the user should know of it.

    Args:
        tokenizer: "auto", "characters", "bytes", "bpe", or the path of a tokenizer.json.
        vocab_size: how many tokens "bpe" shall have.
        seen: the whole corpus, validation too: its characters, so that it can be read, and its size.
        texts: reads the corpus, all of it; "bpe" learns from the training part alone.
        glance: reads as much of the corpus as is asked for; a tokenizer from a file is tried on its beginning.
        special: names in the text that are no text.
    """
    notices = []
    if tokenizer == AUTO and vocab_size is None:
        vocab_size, why = default_vocab_size(seen)
        notices = [why] if why else []
        tokenizer = "characters" if vocab_size is None else "bpe"
    if tokenizer == "characters":
        return CharacterTokenizer(seen.alphabet), notices
    if tokenizer == "bytes":
        return ByteTokenizer(), notices
    if not trains_bpe(tokenizer, vocab_size):
        chosen = load_tokenizer(tokenizer)
        return chosen, _losses(chosen, str(tokenizer), next(_training(preview)))
    from normscope.data.tokenizers.bpe import train_bpe

    wanted = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    plain = (part for text in _training(texts) for part in split_special(text, special) if part not in special)
    learnt = train_bpe(plain, wanted)
    if learnt.vocab_size != wanted:
        notices.append(f"the text is too short for a vocabulary of {wanted} tokens: it got one of {learnt.vocab_size}")
    return learnt, notices


def default_vocab_size(seen: TextStatistics) -> tuple[int | None, str]:
    """How many tokens of BPE suit a text, or None for characters; and why it is not the usual number.

    >>> default_vocab_size(TextStatistics(1, 4_000_000, 4_000_000, 0, "abc"))
    (2048, '')
    >>> [default_vocab_size(TextStatistics(1, size, size, 0, "abc"))[0] for size in (50_000, 5000)]
    [781, None]
    """
    size = min(DEFAULT_VOCAB_SIZE, seen.bytes // BYTES_PER_TOKEN)
    wide = sum(not character.isascii() for character in seen.alphabet)
    crowded = seen.bytes > MAX_ASCII_BYTES_PER_CHARACTER * seen.characters and TOKENS_PER_WIDE_CHARACTER * wide > size
    if (size < MIN_BPE_TOKENS or crowded) and len(seen.alphabet) <= MAX_ALPHABET:
        why = f"it has {wide:,} characters of several bytes" if size >= MIN_BPE_TOKENS else "the text is short"
        return None, (
            f"tokens are the {len(seen.alphabet):,} characters of the text, since {why}; a prompt can have no others. "
            "--tokenizer bpe knows all characters"
        )
    if size < DEFAULT_VOCAB_SIZE:
        size = max(size, MIN_BPE_TOKENS)
        return size, f"bpe learns {size:,} tokens, since the text is short; --vocab-size decides otherwise"
    return size, ""


def _training(texts: Callable[[], AssignedText]) -> Iterator[str]:
    return (text for part, text in texts() if part == "train" and text is not None)


def _losses(tokenizer: Tokenizer, name: str, text: str) -> list[str]:
    """Whether a tokenizer gives back the text that it was given; one that writes all in small letters does not."""
    sample = text[:_SAMPLE]
    got = tokenizer.decode(tokenizer.encode(sample))
    if got == sample:
        return []
    place = next((i for i, (a, b) in enumerate(zip(sample, got, strict=False)) if a != b), min(len(sample), len(got)))
    was, became = (repr(part[max(0, place - 10) : place + 10]) for part in (sample, got))
    return [
        f"the tokenizer {name} does not give back the text: {was} becomes {became}; the model will learn the latter"
    ]
