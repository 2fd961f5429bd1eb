"""A pickled tiktoken.Encoding is read without tiktoken."""

import pickle
from pathlib import Path

import pytest
import tiktoken

from normscope.errors import FileError
from normscope.interop.files.tiktoken_pickle import TiktokenRanks, read_tiktoken

RANKS = {**{bytes([byte]): byte for byte in range(256)}, b"th": 256, b"the": 257}
SPECIAL = {"<|bos|>": 258, "<|user_start|>": 259}


def encoding(**changes: object) -> tiktoken.Encoding:
    settings = {"name": "rustbpe", "pat_str": r"\w+|\s", "mergeable_ranks": RANKS, "special_tokens": SPECIAL}
    return tiktoken.Encoding(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_encoding_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(pickle.dumps(encoding(), protocol))
    assert read_tiktoken(path) == TiktokenRanks("rustbpe", r"\w+|\s", RANKS, SPECIAL)


def state(content: object) -> bytes:
    """The pickle of an Encoding with this state."""
    return b"\x80\x04" + b"ctiktoken.core\nEncoding\n)\x81" + pickle.dumps(content, 4)[2:-1] + b"b."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"a": 1}), "has a dict instead of a tiktoken.Encoding"),
        (state("gpt2"), "only names tiktoken's built-in encoding 'gpt2'"),
        (state({"name": "x"}), "missing required field"),
        (state({"name": "x", "pat_str": "", "mergeable_ranks": {b"a": "0"}, "special_tokens": {}}), "Expected `int`"),
        (state({"name": "x", "pat_str": "", "mergeable_ranks": {b"a": 0}, "special_tokens": {"b": 0}}), "for several"),
        (state({"name": "x", "pat_str": "", "mergeable_ranks": {}, "special_tokens": {}}), "none"),
    ],
)
def test_another_pickle_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_tiktoken(path)
