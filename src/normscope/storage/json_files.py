"""The one way to read JSON: with limits, against a schema, and with an error that names the file and what is wrong.

Any file may come from someone else, or be damaged. Whatever is in it, the reader returns a value of the schema's type
or raises one error of `normscope.errors`; it doesn't hang, exhaust the memory or recurse without end.
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
from normscope.storage.files import is_altered, open_regular, read_limited

T = TypeVar("T")

MIB = 2**20
SMALL = 16 * MIB
"""The largest file of settings or state."""
LARGE = 512 * MIB
"""The largest file of data: tokenizers (one of 256k tokens has 35 MiB), x-rays of large models, lists of sources."""
DEEPEST = 64
"""How deep objects and arrays may be nested; nothing that is read here needs more than ten levels."""
LARGEST_INTEGER = 2**64
"""Integers are sizes, counts, times in nanoseconds and seeds, all of which fit in 64 bits."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A schema for a JSON object: its annotated fields and no others."""


def read_json(
    path: str | Path,
    schema: type[T],
    *,
    fix: str,
    error: type[NormscopeError] = FileError,
    max_bytes: int = SMALL,
    any_text: bool = False,
) -> T:
    """The content of a JSON file, as a value of the schema's type.

    Args:
        path: a regular file; a folder, device or pipe is refused.
        schema: any type that msgspec converts to: `dict[str, Any]`, a `Strict`, a dataclass.
        fix: what the user can do about a file that can't be read.
        error: what to raise.
        max_bytes: a larger file is refused before it is read.
        any_text: let names with NUL characters and halves of surrogate pairs through, as tokens and samples may have.
    """
    with raised_as(error, fix), open_regular(path) as file:
        data = read_limited(file, path, max_bytes)
    return parse_json(data, schema, name=str(path), fix=fix, error=error, any_text=any_text)


def parse_json(
    data: bytes,
    schema: type[T],
    *,
    name: str,
    fix: str,
    error: type[NormscopeError] = FileError,
    any_text: bool = False,
) -> T:
    """JSON in memory, as a value of the schema's type; `name` says in errors where it came from.

    >>> parse_json(b'{"step": 5}', dict[str, int], name="best.json", fix="remove it")
    {'step': 5}
    >>> parse_json(b'{"step": true}', dict[str, int], name="best.json", fix="remove it")
    Traceback (most recent call last):
    normscope.errors.FileError: best.json is not valid: expected `int`, got `bool` at `[...]`
    fix: remove it
    """
    try:
        content = _loads(data, any_text)
    except _ProblemError as problem:
        raise error(f"{name} {problem}\nfix: {fix}") from None
    return convert(content, schema, name=name, fix=fix, error=error)


def convert(content: Any, schema: type[T], *, name: str, fix: str, error: type[NormscopeError] = FileError) -> T:
    """What was read from JSON as a value of the schema's type."""
    try:
        return msgspec.convert(content, schema)
    except msgspec.ValidationError as wrong:
        if isinstance(wrong.__cause__, NormscopeError):  # a dataclass refused its values, and says what to do
            problem = str(wrong.__cause__)
            problem += "" if "\nfix: " in problem else f"\nfix: {fix}"
            raise error(f"{name} is not valid: {problem}") from wrong
        raise error(f"{name} is not valid: {_in_words(str(wrong))}\nfix: {fix}") from None


def read_signed(
    path: str | Path, *, fix: str, error: type[NormscopeError] = FileError, max_bytes: int = SMALL
) -> dict[str, Any]:
    """The content of a file that `signed` content was written to; refused if it isn't what was signed, or unsigned."""
    content = read_json(path, dict[str, Any], fix=fix, error=error, max_bytes=max_bytes)
    return unsigned(content, name=str(path), fix=fix, error=error)


def unsigned(
    content: Mapping[str, Any], *, name: str, fix: str, error: type[NormscopeError] = FileError
) -> dict[str, Any]:
    """Signed content without its checksum; refused if that is missing or doesn't match."""
    if "checksum" not in content:
        raise error(f"{name} is damaged: it has no checksum\nfix: {fix}")
    if is_altered(content):
        raise error(f"{name} is damaged: its checksum is not the one it was written with\nfix: {fix}")
    return {key: value for key, value in content.items() if key != "checksum"}


class _ProblemError(Exception):
    """What is wrong with the text of a JSON file, to follow its name."""


@contextmanager
def raised_as(error: type[NormscopeError], fix: str) -> Iterator[None]:
    """Raise a FileError as another class of errors, with what to do."""
    try:
        yield
    except FileError as problem:
        raise error(f"{problem}\nfix: {fix}") from problem.__cause__


def _loads(data: bytes, any_text: bool) -> Any:
    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise _ProblemError(f"has the name {twice!r:.60} twice in one object")
        if not any_text and any("\0" in name for name in found):
            raise _ProblemError("has a name with a NUL character")
        return found

    try:
        text = data.decode()
        content = json.loads(
            text, object_pairs_hook=as_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise _ProblemError(f"is not UTF-8: byte 0x{data[error.start]:02X} at offset {error.start}") from None
    except RecursionError:
        raise _ProblemError(f"is nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise _ProblemError(f"is not JSON: {error}") from None
    _check_depth(content)
    if not any_text and re.search(r"\\u[dD]", text):
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
    if len(text) > 21 or abs(int(text)) >= LARGEST_INTEGER:
        raise _ProblemError(f"has an integer of more than 64 bits: {text:.30}")
    return int(text)


def _check_depth(content: Any) -> None:
    """Level by level: what comes later (comparing, copying, writing) recurses, and mustn't go too deep either."""
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _ProblemError(f"is nested more than {DEEPEST} levels deep")


def _check_surrogates(content: Any) -> None:
    """JSON can escape half of a surrogate pair, which is no character and can't be printed or written."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _ProblemError("has half of a surrogate pair in a string") from None


def _in_words(problem: str) -> str:
    """msgspec's message without the `$` that stands for the whole file.

    >>> _in_words("Expected `int`, got `str` - at `$.model.depth`")
    'expected `int`, got `str` at `model.depth`'
    """
    problem = problem.replace(" - at `$`", "").replace(" - at ", " at ").replace("`$.", "`").replace("`$[", "`[")
    return problem[:1].lower() + problem[1:]
