"""Tokenizers: text to numbers and back, one file a kind.

A tokenizer that is learnt (`bpe.train_bpe`) or read from elsewhere (`library.LibraryTokenizer`) needs Hugging Face's
library, which is loaded with those files and not before.
"""

from normscope.data.tokenizers.base import DecodeStream, TokenIds, Tokenizer, Tokens
from normscope.data.tokenizers.byte_level import ByteTokenizer
from normscope.data.tokenizers.characters import Alphabet, CharacterTokenizer
from normscope.data.tokenizers.load import load_tokenizer

__all__ = [
    "Alphabet",
    "ByteTokenizer",
    "CharacterTokenizer",
    "DecodeStream",
    "TokenIds",
    "Tokenizer",
    "Tokens",
    "load_tokenizer",
]
