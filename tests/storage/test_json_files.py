"""The JSON reader: any file gives a value of the schema's type, or one error that names the file."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import CheckpointError, FileError, NormscopeError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import MAX_NESTING, JsonSource, StrictStruct, read_json


class Example(StrictStruct):
    step: int
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    more: Any = None


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_json(path, Example, fix="restore it", error=CheckpointError, **options)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("\nfix: restore it")
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"{", "is not JSON: Expecting property name"),
        (b'{"step": 1} {}', "is not JSON: Extra data"),
        (b"\xff\xfe", "is not UTF-8: byte 0xFF at offset 0"),
        (b'\xef\xbb\xbf{"step": 1}', "is not JSON: Unexpected UTF-8 BOM"),
        (b"5", "is not valid: expected `object`, got `int`"),
        (b"[]", "is not valid: expected `object`, got `array`"),
        (b"{}", "is not valid: object missing required field `step`"),
        (b'{"step": 1, "colour": 2}', "is not valid: object contains unknown field `colour`"),
        (b'{"step": true}', "is not valid: expected `int`, got `bool` at `step`"),
        (b'{"step": 1.0}', "is not valid: expected `int`, got `float` at `step`"),
        (b'{"step": null}', "is not valid: expected `int`, got `null` at `step`"),
        (b'{"step": 1, "rates": 5}', "is not valid: expected `object`, got `int` at `rates`"),
        (b'{"step": 1, "rates": {"lr": "x"}}', "is not valid: expected `float`, got `str` at `rates[...]`"),
        (b'{"step": 1, "step": 2}', "has the name 'step' twice"),
        (b'{"step": 1, "more": {"a": {"b": 1, "b": 1}}}', "has the name 'b' twice"),
        (b'{"step": 1, "more": {"a\\u0000": 1}}', "has a name with a NUL character"),
        (b'{"step": 1, "more": "\\ud800"}', "has half of a surrogate pair"),
        (b'{"step": 1, "more": {"\\uD800": 1}}', "has half of a surrogate pair"),
        (b'{"step": NaN}', "has NaN, which JSON does not allow"),
        (b'{"step": 1, "more": -Infinity}', "has -Infinity, which JSON does not allow"),
        (b'{"step": 1, "more": 1e400}', "has a number that is too large: 1e400"),
        (b'{"step": 1, "more": 1' + b"0" * 400 + b"}", "has an integer of more than 64 bits"),
        (b'{"step": 18446744073709551616}', "has an integer of more than 64 bits"),
        (b'{"step": 1, "more": ' + b"9" * 10_000 + b"}", "has an integer of more than 64 bits"),
        (b'{"step": 1, "more": ' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}", "is nested more than 64 levels"),
        (b'{"step": 1, "more": ' + b"[" * 10**6 + b"]" * 10**6 + b"}", "is nested more than 64 levels deep"),
        (b'{"a":' * 10**6, "is nested more than 64 levels deep"),
    ],
)  # fmt: skip
def test_the_problem_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(data)
    assert refusal(path).startswith(f"{path} {words}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"step": 18446744073709551615}', Example(step=2**64 - 1)),
        ('{"step": -5, "rates": {"lr": 1}}', Example(step=-5, rates={"lr": 1.0})),
        ('{"step": 0, "more": "\\ud83d\\ude00"}', Example(step=0, more="\N{GRINNING FACE}")),
        ('{"step": 0, "more": ' + "[" * (MAX_NESTING - 1) + "]" * (MAX_NESTING - 1) + "}", None),
    ],
)
def test_values_at_the_limits_are_read(tmp_path: Path, text: str, wanted: Example | None) -> None:
    (tmp_path / "state.json").write_text(text)
    found = read_json(tmp_path / "state.json", Example, fix="")
    assert wanted is None or found == wanted


def test_any_text_is_read_if_allowed() -> None:
    data = json.dumps({"\0": 0, "\ud800": 1}).encode()
    source = JsonSource("tokenizer.json", fix="restore it")
    assert source.parse(data, dict[str, int], allow_any_text=True) == {"\0": 0, "\ud800": 1}
    with pytest.raises(FileError, match=r"^tokenizer\.json has a name with a NUL character\nfix: restore it$"):
        source.parse(data, dict[str, int])


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole that takes no room on the disk
    assert "it has 1,099,511,627,776 bytes, more than the limit of 16,777,216" in refusal(path)
    path.write_text('{"step": 1}')
    assert "it has 11 bytes, more than the limit of 10" in refusal(path, max_bytes=10)
    assert read_json(path, Example, fix="", max_bytes=11) == Example(step=1)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    assert "cannot read" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nothing.json")
    assert "cannot read" in refusal(tmp_path / "nul\0")
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe, not a regular file" in refusal(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "it is a device, not a regular file" in refusal(tmp_path / "zero")
    (tmp_path / "folder").symlink_to(tmp_path)
    assert "it is a folder, not a regular file" in refusal(tmp_path / "folder")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot read" in refusal(tmp_path / "loop")


def test_a_checksum_is_verified_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text(json.dumps(with_checksum({"step": 5})))
    assert read_json(path, dict[str, int], fix="remove it", checksum=True) == {"step": 5}
    for content, words in (
        ({**with_checksum({"step": 5}), "step": 6}, "its checksum is wrong"),
        ({"step": 5, "checksum": 7}, "its checksum is wrong"),
        ({"step": 5}, "it has no checksum"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(FileError, match=f"{words}\nfix: remove it"):
            read_json(path, dict[str, int], fix="remove it", checksum=True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@settings(max_examples=100)
@given(content=values | st.fixed_dictionaries({"step": values, "rates": values, "more": values}), flip=st.integers(0))
def test_any_bytes_are_read_or_are_an_error_with_the_name(
    tmp_path_factory: pytest.TempPathFactory, content: Any, flip: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "state.json"
    data = bytearray(json.dumps(content).encode())
    data[flip // 8 % len(data)] ^= 1 << flip % 8
    path.write_bytes(data)
    try:
        found = read_json(path, Example, fix="restore it")
    except NormscopeError as error:
        named = str(path) in str(error)
    else:
        named = True
        json.dumps([found.step, found.rates, found.more], allow_nan=False).encode()
    assert named
