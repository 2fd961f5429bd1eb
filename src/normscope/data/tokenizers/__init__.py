"""Tokenizers, one file per kind.

`bpe.train_bpe` and `huggingface.HuggingFaceTokenizer` need Hugging Face's `tokenizers`, which is imported with those
modules only.
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
