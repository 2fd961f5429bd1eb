"""Files that are not tokenizers are refused with the reason."""

from pathlib import Path

import pytest

from normscope.data.tokenizers import CharacterTokenizer, load_tokenizer
from normscope.errors import FileError


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no tokenizer file .*nothing\.json\nfix: name a tokenizer\.json, or"):
        load_tokenizer(tmp_path / "nothing.json")
    with pytest.raises(FileError, match=r"there is no tokenizer file .*tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8: byte 0xFF at offset 0"),
        (b'{"kind": "characters", "alph', "is not JSON"),
        (b"[1, 2]", "is not valid: expected `object`, got `array`"),
        (b"{}", "is not a tokenizer: it has neither a known 'kind' nor a 'model'"),
        (b'{"kind": "syllables"}', "is not a tokenizer: it has neither a known 'kind'"),
        (b'{"kind": "characters"}', "is not a tokenizer: it has neither a known 'kind'"),
        (b'{"kind": "characters", "alphabet": ["a"]}', "is not a tokenizer: it has neither a known 'kind'"),
        (b'{"kind": "characters", "alphabet": "ba"}', "is not a tokenizer: its alphabet is not unique characters"),
        (
            b'{"kind": "characters", "alphabet": "\\ud800"}',
            "is not a tokenizer: its alphabet is not unique characters",
        ),
        (b'{"model": {"type": "Magic"}}', "is not a tokenizer: the tokenizers library cannot read it"),
    ],
)
def test_files_that_are_not_tokenizers(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"{path} {why}")
    assert "\nfix: " in str(caught.value)


def test_a_truncated_huggingface_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    CharacterTokenizer("abc").save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileError, match="is not JSON"):
        load_tokenizer(path)
