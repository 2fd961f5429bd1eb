"""File formats: older ones are migrated step by step, newer and unknown ones are errors."""

import json
from typing import Any

import pytest

from normscope.errors import CheckpointError, FileError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat, JsonSource

BOOK = FileFormat(
    4,
    {
        2: lambda book: {"author": book["writer"]},
        3: lambda book: {**book, "author": [book["author"]]},
    },
)


@pytest.mark.parametrize(
    "content",
    [{"format": 2, "writer": "Ada"}, {"format": 3, "author": "Ada"}, {"format": 4, "author": ["Ada"]}],
)
def test_every_readable_format_becomes_the_current_one(content: dict[str, Any]) -> None:
    before = dict(content)
    assert BOOK.migrate(content) == {"author": ["Ada"]}
    assert content == before


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "has format 1, but this version of normscope reads formats 2 to 4\nfix: use the version"),
        (5, "has format 5, but this version of normscope reads formats 2 to 4\nfix: update normscope"),
        (None, "has no valid format number: None"),
        ("3", "has no valid format number: '3'"),
        (True, "has no valid format number: True"),
        (-1, "has no valid format number: -1"),
        (3.0, "has no valid format number: 3.0"),
    ],
)
def test_other_formats_are_errors(version: Any, message: str) -> None:
    with pytest.raises(FileError, match=f"^book.json {message}"):
        JsonSource("book.json", "restore it").migrate({"format": version, "author": "Ada"}, BOOK)
    with pytest.raises(CheckpointError, match=r"book\.json"):
        JsonSource("book.json", "restore it", CheckpointError).migrate({"format": version}, BOOK)


def test_a_first_format_has_no_migrations() -> None:
    source = JsonSource("f", "restore it")
    assert source.migrate({"format": 1, "x": 2}, FileFormat(1)) == {"x": 2}
    with pytest.raises(FileError, match="f has format 2, but this version of normscope reads format 1\nfix: update"):
        source.migrate({"format": 2}, FileFormat(1))


def test_content_is_verified_then_migrated_then_converted() -> None:
    source = JsonSource("book.json", "restore it")
    data = json.dumps(with_checksum({"format": 2, "writer": "Ada"})).encode()
    assert source.parse(data, dict[str, list[str]], checksum=True, file_format=BOOK) == {"author": ["Ada"]}
    with pytest.raises(FileError, match="is damaged: its checksum is wrong"):
        source.parse(data.replace(b"Ada", b"Eve"), dict[str, list[str]], checksum=True, file_format=BOOK)
    with pytest.raises(FileError, match=r"expected `int`, got `array`"):
        source.parse(data, dict[str, int], checksum=True, file_format=BOOK)
