"""The tokenizer that was asked for: by its kind, or by its file."""

from collections.abc import Callable, Iterator
from pathlib import Path

from normscope.data.split import Assigned
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE, Tokenizer
from normscope.data.tokenizers.byte_level import ByteTokenizer
from normscope.data.tokenizers.characters import CharacterTokenizer
from normscope.data.tokenizers.loading import load_tokenizer
from normscope.errors import ConfigError

KINDS = ("characters", "bytes", "bpe")
_SAMPLE = 2000


def check_choice(tokenizer: str | Path, vocab_size: int | None) -> None:
    """Refuse before anything is read what would fail after it."""
    if tokenizer == "bpe" and vocab_size is not None:
        from normscope.data.tokenizers.bpe import check_vocab_size

        check_vocab_size(vocab_size)
    elif vocab_size is not None:
        raise ConfigError(
            f"vocab_size={vocab_size!r} is for the tokenizer 'bpe': the size of {str(tokenizer)!r} is what it is\n"
            f"fix: leave vocab_size out, or tokenizer='bpe'"
        )
    if not isinstance(tokenizer, str) or tokenizer not in KINDS:
        load_tokenizer(tokenizer)


def choose_tokenizer(
    tokenizer: str | Path,
    vocab_size: int | None,
    alphabet: str,
    texts: Callable[[], Assigned],
    glance: Callable[[], Assigned],
) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what the user should know of it.

    Args:
        tokenizer: "characters", "bytes", "bpe", or the path of a tokenizer.json.
        vocab_size: how many tokens "bpe" shall have.
        alphabet: the characters of the whole corpus, validation too, so that it can be read.
        texts: reads the corpus, all of it; "bpe" learns from the training part alone.
        glance: reads as much of the corpus as is asked for; a tokenizer from a file is tried on its beginning.
    """
    if tokenizer == "characters":
        return CharacterTokenizer(alphabet), []
    if tokenizer == "bytes":
        return ByteTokenizer(), []
    if tokenizer != "bpe":
        chosen = load_tokenizer(tokenizer)
        return chosen, _losses(chosen, str(tokenizer), next(_training(glance)))
    from normscope.data.tokenizers.bpe import train_bpe

    wanted = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    learnt = train_bpe(_training(texts), wanted)
    if learnt.vocab_size == wanted:
        return learnt, []
    return learnt, [f"the text is too short for a vocabulary of {wanted} tokens: it got one of {learnt.vocab_size}"]


def _training(texts: Callable[[], Assigned]) -> Iterator[str]:
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
