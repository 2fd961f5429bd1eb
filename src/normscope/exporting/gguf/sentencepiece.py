"""BPE over characters with byte fallback, as of Gemma, Phi-3 and Llama 2, as llama.cpp's SentencePiece ("llama").

llama.cpp has no merges: of two neighbors that are a token together, those with the highest score are merged first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from normscope.comparing.tokenizers import StringClass, compare_tokenizers
from normscope.data.tokenizers import Tokenizer
from normscope.interop.gguf.tokenizer import SPACE, read_gguf_tokenizer

_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_NEVER_SPLITS = {"type": "Split", "pattern": {"String": " "}}
"""After the normalizer there are no spaces left."""
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The tokens of the bytes of characters without a token."""


def space_prefix(content: Mapping[str, Any]) -> bool | None:
    """Whether a space is put before every text; None for a tokenizer.json that is not SentencePiece's.

    Args:
        content: the contents of tokenizer.json.
    """
    match content.get("normalizer"), content.get("pre_tokenizer"):
        case {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": prefix}, replace]}, None:
            return True if prefix == SPACE and replace == _REPLACE else None
        case replace, splitter if replace == _REPLACE:
            return False if splitter is None or _NEVER_SPLITS.items() <= splitter.items() else None
        case None, {"type": "Metaspace", "replacement": character, "split": False, "prepend_scheme": scheme}:
            return scheme != "never" if character == SPACE else None
    return None


def scores(vocabulary: Mapping[str, int], merges: Sequence[str], size: int) -> list[float]:
    """The score of each token: the earlier a merge makes it, the higher.

    >>> scores({"a": 0, "b": 1, "ab": 2, "aab": 3}, ["a b", "a ab"], 5)
    [0.0, 0.0, -1.0, -2.0, 0.0]
    """
    found = [0.0] * size
    made = dict.fromkeys(merge.replace(" ", "", 1) for merge in merges)
    for rank, token in enumerate(made, start=1):
        found[vocabulary[token]] = -float(rank)
    return found


class _Codec(NamedTuple):
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text).tolist()
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))


def differing(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> Sequence[StringClass]:
    """The classes of random strings that merging by scores encodes differently.

    Args:
        tokenizer: the tokenizer.
        metadata: that of the GGUF file, whose scores are tried.
    """
    read = read_gguf_tokenizer(metadata)
    assert read is not None
    return compare_tokenizers(_Codec(tokenizer), _Codec(read), vocab_size=tokenizer.vocab_size).differing
