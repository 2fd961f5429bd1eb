"""Byte-pair encoding, learnt from the training text: frequent words are one token, rare ones a few."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from normscope.checks import is_integer
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE, EOS_TOKEN
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, parallel_tokenization
from normscope.errors import ConfigError

_SMALLEST = 257  # each byte, and the end


def train_bpe(texts: Iterable[str], vocab_size: int = DEFAULT_VOCAB_SIZE) -> HuggingFaceTokenizer:
    """A byte-level tokenizer for these texts: it knows every text, and is shortest on such as these.

    The texts are read once and not kept. The same texts give the same tokenizer. Short texts may have fewer tokens
    than `vocab_size`.

    >>> tokenizer = train_bpe(["the cat and the hat and the bat"], vocab_size=268)
    >>> [tokenizer.decode([token]) for token in tokenizer.encode(" and the rat")]
    [' and', ' the', ' ', 'r', 'at']

    Paper:
        Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
    """
    check_vocab_size(vocab_size)
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with parallel_tokenization():
        library.train_from_iterator(iter(texts), trainer)
    return HuggingFaceTokenizer(library)


def check_vocab_size(vocab_size: int) -> None:
    """Refuse a vocabulary that has no room for each byte."""
    if not is_integer(vocab_size, least=_SMALLEST):
        raise ConfigError(
            f"vocab_size={vocab_size!r} must be a whole number from {_SMALLEST} on: each byte and the end are tokens\n"
            f"fix: vocab_size={DEFAULT_VOCAB_SIZE}, or the tokenizer 'bytes', which has no others"
        )
