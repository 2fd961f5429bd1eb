"""Tokenizers, one file per kind.

`train_bpe` and `HuggingFaceTokenizer` need Hugging Face's `tokenizers`, which is imported with `huggingface` only.
"""

from normscope.data.tokenizers.base import DecodeStream, TokenIds, Tokenizer, Tokens
from normscope.data.tokenizers.characters import Alphabet, AlphabetTokenizer, ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.load import load_tokenizer

__all__ = [
    "Alphabet",
    "AlphabetTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "DecodeStream",
    "TokenIds",
    "Tokenizer",
    "Tokens",
    "load_tokenizer",
]
