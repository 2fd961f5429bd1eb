"""Train a byte-level BPE tokenizer."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from normscope.checks import is_integer
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE, EOS_TOKEN
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, parallel_tokenization
from normscope.errors import ConfigError

_MIN_VOCAB_SIZE = 257  # all bytes, and the end-of-text token


def train_bpe(texts: Iterable[str], vocab_size: int = DEFAULT_VOCAB_SIZE) -> HuggingFaceTokenizer:
    """Train a byte-level BPE tokenizer; it can encode any text.

    The texts are read once and not kept in memory. Training is deterministic. Short texts may yield fewer tokens than
    `vocab_size`.

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
    """Raise if the vocabulary is too small for all bytes."""
    if not is_integer(vocab_size, least=_MIN_VOCAB_SIZE):
        raise ConfigError(
            f"vocab_size={vocab_size!r} must be an integer >= {_MIN_VOCAB_SIZE}: 256 bytes and the end-of-text token\n"
            f"fix: vocab_size={DEFAULT_VOCAB_SIZE}, or tokenizer='bytes', which has only these"
        )
