"""Read JSON with size limits and a schema; errors name the file and the problem.

A file may be damaged or malicious. The reader returns a value of the schema's type or raises a `NormscopeError`; it
never hangs, exhausts the memory or recurses without limit.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from normscope.errors import FileError, NormscopeError
from normscope.storage.files import has_valid_checksum, open_regular, read_limited

T = TypeVar("T")

MIB = 2**20
SMALL_FILE_BYTES = 16 * MIB
"""Size limit of settings and state files."""
LARGE_FILE_BYTES = 512 * MIB
"""Size limit of data files: tokenizers (35 MiB for 256k tokens), x-rays of large models, lists of sources."""
MAX_NESTING = 64
"""Maximum nesting of objects and arrays; no file needs more than ten levels."""
INTEGER_LIMIT = 2**64
"""Limit of integers: sizes, counts, nanoseconds and seeds fit into 64 bits."""


class StrictStruct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base class of schemas for JSON objects; unknown fields are an error."""


def read_json(
    path: str | Path,
    schema: type[T],
    *,
    fix: str,
    error: type[NormscopeError] = FileError,
    max_bytes: int = SMALL_FILE_BYTES,
    allow_any_text: bool = False,
) -> T:
    """Read a JSON file as a value of the schema's type.

    Args:
        path: A regular file.
        schema: Any type msgspec converts to: `dict[str, Any]`, a `StrictStruct`, a dataclass.
        fix: Fix to suggest if the file can't be read.
        error: Exception class to raise.
        max_bytes: Size limit.
        allow_any_text: Allow NUL characters in names, and lone surrogates, which tokens and samples may contain.
    """
    with reraise_as(error, fix), open_regular(path) as file:
        data = read_limited(file, path, max_bytes)
    return parse_json(data, schema, name=str(path), fix=fix, error=error, allow_any_text=allow_any_text)


def parse_json(
    data: bytes,
    schema: type[T],
    *,
    name: str,
    fix: str,
    error: type[NormscopeError] = FileError,
    allow_any_text: bool = False,
) -> T:
    """Parse JSON as a value of the schema's type; `name` is the source shown in errors.

    >>> parse_json(b'{"step": 5}', dict[str, int], name="best.json", fix="remove it")
    {'step': 5}
    >>> parse_json(b'{"step": true}', dict[str, int], name="best.json", fix="remove it")
    Traceback (most recent call last):
    normscope.errors.FileError: best.json is not valid: expected `int`, got `bool` at `[...]`
    fix: remove it
    """
    try:
        content = _loads(data, allow_any_text)
    except _ProblemError as problem:
        raise error(f"{name} {problem}\nfix: {fix}") from None
    return convert(content, schema, name=name, fix=fix, error=error)


def convert(content: Any, schema: type[T], *, name: str, fix: str, error: type[NormscopeError] = FileError) -> T:
    """Convert parsed JSON to a value of the schema's type."""
    try:
        return msgspec.convert(content, schema)
    except msgspec.ValidationError as wrong:
        if isinstance(wrong.__cause__, NormscopeError):  # raised by a dataclass, with its own fix
            problem = str(wrong.__cause__)
            problem += "" if "\nfix: " in problem else f"\nfix: {fix}"
            raise error(f"{name} is not valid: {problem}") from wrong
        raise error(f"{name} is not valid: {_clean_message(str(wrong))}\nfix: {fix}") from None


def read_checksummed_json(
    path: str | Path, *, fix: str, error: type[NormscopeError] = FileError, max_bytes: int = SMALL_FILE_BYTES
) -> dict[str, Any]:
    """Read a JSON file written by `with_checksum`; raises if the checksum is missing or wrong."""
    content = read_json(path, dict[str, Any], fix=fix, error=error, max_bytes=max_bytes)
    return without_checksum(content, name=str(path), fix=fix, error=error)


def without_checksum(
    content: Mapping[str, Any], *, name: str, fix: str, error: type[NormscopeError] = FileError
) -> dict[str, Any]:
    """Verify and remove the checksum of content; raises if it is missing or wrong."""
    if "checksum" not in content:
        raise error(f"{name} is damaged: it has no checksum\nfix: {fix}")
    if not has_valid_checksum(content):
        raise error(f"{name} is damaged: its checksum is wrong\nfix: {fix}")
    return {key: value for key, value in content.items() if key != "checksum"}


class _ProblemError(Exception):
    """What is wrong with a JSON text; the message follows the name of the file."""


@contextmanager
def reraise_as(error: type[NormscopeError], fix: str) -> Iterator[None]:
    """Raise a FileError as another exception class, with a fix."""
    try:
        yield
    except FileError as problem:
        raise error(f"{problem}\nfix: {fix}") from problem.__cause__


def _loads(data: bytes, allow_any_text: bool) -> Any:
    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            [(duplicate, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise _ProblemError(f"has the name {duplicate!r:.60} twice in one object")
        if not allow_any_text and any("\0" in name for name in content):
            raise _ProblemError("has a name with a NUL character")
        return content

    try:
        text = data.decode()
        content = json.loads(
            text, object_pairs_hook=as_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise _ProblemError(f"is not UTF-8: byte 0x{data[error.start]:02X} at offset {error.start}") from None
    except RecursionError:
        raise _ProblemError(f"is nested more than {MAX_NESTING} levels deep") from None
    except ValueError as error:
        raise _ProblemError(f"is not JSON: {error}") from None
    _check_depth(content)
    if not allow_any_text and re.search(r"\\u[dD]", text):
        _check_surrogates(content)
    return content


def _constant(name: str) -> NoReturn:
    raise _ProblemError(f"has {name}, which JSON does not allow")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _ProblemError(f"has a number that is too large: {text:.30}")
    return value


def _integer(text: str) -> int:
    if len(text) > 21 or abs(int(text)) >= INTEGER_LIMIT:
        raise _ProblemError(f"has an integer of more than 64 bits: {text:.30}")
    return int(text)


def _check_depth(content: Any) -> None:
    """Check the nesting level by level: later operations (comparing, copying, writing) recurse."""
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(MAX_NESTING):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _ProblemError(f"is nested more than {MAX_NESTING} levels deep")


def _check_surrogates(content: Any) -> None:
    """Reject lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _ProblemError("has half of a surrogate pair in a string") from None


def _clean_message(problem: str) -> str:
    """msgspec's message without `$`, the root of the file.

    >>> _clean_message("Expected `int`, got `str` - at `$.model.depth`")
    'expected `int`, got `str` at `model.depth`'
    """
    problem = problem.replace(" - at `$`", "").replace(" - at ", " at ").replace("`$.", "`").replace("`$[", "`[")
    return problem[:1].lower() + problem[1:]
