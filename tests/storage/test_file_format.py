"""File formats: older ones are migrated step by step, newer and unknown ones are errors."""

from typing import Any

import pytest

from normscope.errors import CheckpointError, FileError
from normscope.storage.file_format import FileFormat, rename_fields

BOOK = FileFormat(
    4,
    {
        2: lambda book: rename_fields(book, {"writer": "author"}),
        3: lambda book: {**book, "author": [book["author"]]},
    },
)


@pytest.mark.parametrize(
    "content",
    [{"format": 2, "writer": "Ada"}, {"format": 3, "author": "Ada"}, {"format": 4, "author": ["Ada"]}],
)
def test_every_readable_format_becomes_the_current_one(content: dict[str, Any]) -> None:
    before = dict(content)
    assert BOOK.migrate(content, name="book.json") == {"format": 4, "author": ["Ada"]}
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
        BOOK.migrate({"format": version, "author": "Ada"}, name="book.json")
    with pytest.raises(CheckpointError, match=r"book\.json"):
        BOOK.migrate({"format": version}, name="book.json", error=CheckpointError)


def test_a_first_format_has_no_migrations() -> None:
    assert FileFormat(1).migrate({"format": 1, "x": 2}, name="f") == {"format": 1, "x": 2}
    with pytest.raises(FileError, match="f has format 2, but this version of normscope reads format 1\nfix: update"):
        FileFormat(1).migrate({"format": 2}, name="f")
