"""Read JSON with size limits and a schema; errors name the file and the problem.

A file may be damaged or malicious. The reader returns a value of the schema's type or raises a `NormscopeError`; it
never hangs, exhausts the memory or recurses without limit.

Every JSON file has a field `format`. A file of an older format is migrated when it is read, one version at a time. A
file of a newer format is an error. A field added with a default needs no new format: readers use the default if the
field is missing. Renamed, removed or reinterpreted fields need a new format and a migration. Unknown fields are errors.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from normscope.checks import is_integer
from normscope.errors import FileError, NormscopeError
from normscope.storage.files import has_valid_checksum, open_regular, read_limited

T = TypeVar("T")

MIB = 2**20
SMALL_FILE_BYTES = 16 * MIB
"""Size limit of settings and state files."""
MAX_TOKENIZER_BYTES = 64 * MIB
"""Size limit of a tokenizer.json, which has 35 MiB for 256k tokens."""
LARGE_FILE_BYTES = 512 * MIB
"""Size limit of data files: x-rays of large models, lists of sources."""
MAX_NESTING = 64
"""Maximum nesting of objects and arrays; no file needs more than ten levels."""
INTEGER_LIMIT = 2**64
"""Limit of integers: sizes, counts, nanoseconds and seeds fit into 64 bits."""


class StrictStruct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base class of schemas for JSON objects; unknown fields are an error."""


class ContentError(Exception):
    """Invalid content of a file; the message is appended to the file name."""


@dataclass(frozen=True)
class FileFormat:
    """The current format of a file, and migrations from older formats.

    Args:
        version: The version that is written.
        migrations: For each older version that can be read, a function that converts it to the next version.

    >>> book = FileFormat(3, {1: lambda book: {"author": book["writer"]}, 2: lambda book: book})
    >>> book.migrate({"format": 1, "writer": "Ada"})
    {'author': 'Ada'}
    >>> book.migrate({"format": 4})
    Traceback (most recent call last):
    normscope.storage.json_files.ContentError: has format 4, but this version of normscope reads formats 1 to 3
    fix: update normscope
    """

    version: int
    migrations: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        return min(self.migrations, default=self.version)

    def migrate(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Convert content of any readable format to the current one, without the field `format`."""
        version: Any = content.get("format")
        if not is_integer(version, least=0):
            raise ContentError(f"has no valid format number: {version!r:.40}\nfix: restore it from a copy")
        if not self.oldest <= version <= self.version:
            known = f"formats {self.oldest} to {self.version}" if self.migrations else f"format {self.version}"
            fix = "update normscope" if version > self.version else "use the version of normscope that wrote it"
            raise ContentError(f"has format {version}, but this version of normscope reads {known}\nfix: {fix}")
        migrated = {name: value for name, value in content.items() if name != "format"}
        for old in range(version, self.version):
            migrated = self.migrations[old](migrated)
        return migrated


@dataclass(frozen=True)
class JsonSource:
    """A source of JSON, and what to raise if it is invalid.

    Args:
        name: Name shown in errors, usually a path.
        fix: Fix to suggest.
        error: Exception class to raise.

    >>> best = JsonSource("best.json", fix="remove it")
    >>> best.parse(b'{"step": 5}', dict[str, int])
    {'step': 5}
    >>> best.parse(b'{"step": true}', dict[str, int])
    Traceback (most recent call last):
    normscope.errors.FileError: best.json is not valid: expected `int`, got `bool` at `[...]`
    fix: remove it
    """

    name: str | Path
    fix: str
    error: type[NormscopeError] = FileError

    def problem(self, text: str) -> NormscopeError:
        """The exception for a problem; the text follows the name."""
        return self.error(f"{self.name} {text}\nfix: {self.fix}")

    def parse(
        self,
        data: bytes,
        schema: type[T],
        *,
        checksum: bool = False,
        file_format: FileFormat | None = None,
        allow_any_text: bool = False,
    ) -> T:
        """Parse JSON as a value of the schema's type.

        Args:
            data: The content of the file.
            schema: Any type msgspec converts to: `dict[str, Any]`, a `StrictStruct`, a dataclass.
            checksum: Verify and remove a checksum written by `with_checksum`.
            file_format: Check and remove the field `format`; content of an older format is migrated.
            allow_any_text: Allow NUL characters in names, and lone surrogates, which tokens and samples may contain.
        """
        try:
            content = _loads(data, allow_any_text)
        except ContentError as problem:
            raise self.problem(str(problem)) from None
        if checksum:
            content = self.without_checksum(self.convert(content, dict[str, Any]))
        if file_format is not None:
            content = self.migrate(self.convert(content, dict[str, Any]), file_format)
        return self.convert(content, schema)

    def convert(self, content: Any, schema: type[T]) -> T:
        """Convert parsed JSON to a value of the schema's type."""
        try:
            return msgspec.convert(content, schema)
        except msgspec.ValidationError as wrong:
            if isinstance(wrong.__cause__, NormscopeError):  # raised by a dataclass, perhaps with its own fix
                raise self.wrap(wrong.__cause__, "is not valid") from wrong
            raise self.problem(f"is not valid: {_clean_message(str(wrong))}") from None

    def wrap(self, cause: NormscopeError, what: str) -> NormscopeError:
        """The exception for an error found in the content, which may have its own fix."""
        return self.error(_with_fix(f"{self.name} {what}: {cause}", self.fix))

    def migrate(self, content: Mapping[str, Any], file_format: FileFormat) -> dict[str, Any]:
        """Check and remove the field `format`; content of an older format is migrated."""
        try:
            return file_format.migrate(content)
        except ContentError as problem:
            raise self.error(f"{self.name} {problem}") from None

    def without_checksum(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Verify and remove the checksum of content; raises if it is missing or wrong."""
        if "checksum" not in content:
            raise self.problem("is damaged: it has no checksum")
        if not has_valid_checksum(content):
            raise self.problem("is damaged: its checksum is wrong")
        return {key: value for key, value in content.items() if key != "checksum"}


def read_json(
    path: str | Path,
    schema: type[T],
    *,
    fix: str,
    error: type[NormscopeError] = FileError,
    max_bytes: int = SMALL_FILE_BYTES,
    checksum: bool = False,
) -> T:
    """Read a JSON file as a value of the schema's type; see `JsonSource`."""
    with reraise_as(error, fix), open_regular(path) as file:
        data = read_limited(file, path, max_bytes)
    return JsonSource(path, fix, error).parse(data, schema, checksum=checksum)


def to_json_bytes(content: Mapping[str, Any]) -> bytes:
    """The content of a JSON file, one field per line; raises on a NaN or Inf."""
    return json.dumps(content, indent=1, allow_nan=False).encode()


@contextmanager
def reraise_as(error: type[NormscopeError], fix: str) -> Iterator[None]:
    """Raise a FileError as another exception class, with a fix unless it has one."""
    try:
        yield
    except FileError as problem:
        raise error(_with_fix(str(problem), fix)) from problem.__cause__


def _with_fix(message: str, fix: str) -> str:
    return message if "\nfix: " in message else f"{message}\nfix: {fix}"


def _loads(data: bytes, allow_any_text: bool) -> Any:
    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            [(duplicate, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ContentError(f"has the name {duplicate!r:.60} twice in one object")
        if may_have_nul and any("\0" in name for name in content):
            raise ContentError("has a name with a NUL character")
        return content

    try:
        text = data.decode()
        may_have_nul = not allow_any_text and "\\u0000" in text  # unescaped, it is not JSON
        content = json.loads(
            text, object_pairs_hook=as_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise ContentError(f"is not UTF-8: byte 0x{data[error.start]:02X} at offset {error.start}") from None
    except RecursionError:
        raise ContentError(f"is nested more than {MAX_NESTING} levels deep") from None
    except ValueError as error:
        raise ContentError(f"is not JSON: {error}") from None
    _check_depth(content)
    if not allow_any_text and re.search(r"\\u[dD]", text):
        _check_surrogates(content)
    return content


def _constant(name: str) -> NoReturn:
    raise ContentError(f"has {name}, which JSON does not allow")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ContentError(f"has a number that is too large: {text:.30}")
    return value


def _integer(text: str) -> int:
    if len(text) > 21 or abs(int(text)) >= INTEGER_LIMIT:
        raise ContentError(f"has an integer of more than 64 bits: {text:.30}")
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
    raise ContentError(f"is nested more than {MAX_NESTING} levels deep")


def _check_surrogates(content: Any) -> None:
    """Reject lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ContentError("has half of a surrogate pair in a string") from None


def _clean_message(problem: str) -> str:
    """msgspec's message without `$`, the root of the file.

    >>> _clean_message("Expected `int`, got `str` - at `$.model.depth`")
    'expected `int`, got `str` at `model.depth`'
    """
    problem = problem.replace(" - at `$`", "").replace(" - at ", " at ").replace("`$.", "`").replace("`$[", "`[")
    return problem[:1].lower() + problem[1:]
