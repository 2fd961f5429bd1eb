"""Byte tokenizer: one token per UTF-8 byte."""

import json

import numpy as np

from normscope.data.tokenizers.base import ByteDecodeStream, DecodeStream, TokenIds, Tokenizer, Tokens, encode_utf8

_BYTES = 256
_TABLE = (*(bytes([byte]) for byte in range(_BYTES)), b"")


class ByteTokenizer(Tokenizer):
    """One token per byte; token 256 is end-of-text.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    array([110, 195, 169], dtype=uint16)
    >>> stream = tokenizer.stream()
    >>> [stream.push(token) for token in (110, 195, 169)], stream.finish()
    (['n', '', 'é'], '')
    """

    kind = "bytes"
    vocab_size = _BYTES + 1
    eos_token_id = _BYTES

    def _encode(self, text: str) -> Tokens:
        return np.frombuffer(encode_utf8(text), dtype=np.uint8).astype(self.dtype)

    def decode(self, tokens: TokenIds) -> str:
        ids = self.check_tokens(tokens)
        data: bytes = ids[ids != self.eos_token_id].astype(np.uint8).tobytes()
        return data.decode("utf-8", "replace")

    def stream(self, after: TokenIds = ()) -> DecodeStream:
        return ByteDecodeStream(self, _TABLE)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind}) + "\n"
