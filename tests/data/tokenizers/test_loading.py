"""Files that hold no tokenizer are refused, with the reason."""

from pathlib import Path

import pytest

from normscope.data.tokenizers import CharacterTokenizer, load_tokenizer
from normscope.errors import FileError


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no tokenizer file .*nothing\.json\nfix: name a tokenizer\.json, or"):
        load_tokenizer(tmp_path / "nothing.json")
    with pytest.raises(FileError, match=r"there is no tokenizer file .*tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not text"),
        (b'{"kind": "characters", "alph', "it is not JSON"),
        (b"[1, 2]", "it holds list, not an object"),
        (b"{}", "it has neither a 'kind' that is known here nor a 'model'"),
        (b'{"kind": "syllables"}', "it has neither a 'kind'"),
        (b'{"kind": "characters"}', "it has neither a 'kind'"),
        (b'{"kind": "characters", "alphabet": ["a"]}', "it has neither a 'kind'"),
        (b'{"kind": "characters", "alphabet": "ba"}', "its alphabet is not each character once"),
        (b'{"kind": "characters", "alphabet": "\\ud800"}', "its alphabet is not each character once"),
        (b'{"model": {"type": "Magic"}}', "the tokenizers library cannot read it"),
    ],
)
def test_what_is_no_tokenizer(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"{path} is not a tokenizer: {why}")
    assert "\nfix: " in str(caught.value)


def test_a_truncated_file_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    CharacterTokenizer("abc").save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileError, match="it is not JSON"):
        load_tokenizer(path)
