"""A tokenizer.json in Hugging Face's library itself, for tools that leave tokens to it."""

from collections.abc import Sequence
from pathlib import Path


class LibraryCodec:
    """Encodes and decodes with a tokenizer.json; special tokens are neither parsed nor shown."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        self.library = tokenizers.Tokenizer.from_file(str(path))
        self.library.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.library.decode(list(tokens), skip_special_tokens=True))
