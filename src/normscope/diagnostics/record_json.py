"""Records as files: JSON with one module a line, from which the very same record can be read again.

What a field is by default is left out. Numbers that are not finite, which JSON does not have, are the texts nan, inf
and -inf.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

from normscope.checks import is_integer
from normscope.diagnostics.record import FINGERPRINT_SIZE, VERSION, AttentionStats, ModuleRecord, XrayRecord
from normscope.errors import FileError
from normscope.storage.files import with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, read_json, without_checksum

_FORMAT = "normscope x-ray"
_AGAIN = "name a file that `normscope xray TARGET --json FILE` wrote"
_LARGEST = 2**63
"""Whole numbers are counts and sizes, which a machine holds in 64 bits."""
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def save_record(record: XrayRecord, path: str | Path) -> None:
    """Write a record to a file, whole or not at all.

    >>> import tempfile
    >>> from normscope.diagnostics.record import ModuleRecord
    >>> record = XrayRecord("Sequential", (ModuleRecord("", "Sequential"), ModuleRecord("0", "Linear", flops=12)), 1, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_record(record, Path(folder) / "xray.json")
    ...     load_record(Path(folder) / "xray.json") == record
    True
    """
    write_atomically(path, record_text(record))


def record_text(record: XrayRecord) -> str:
    """What `save_record` writes."""
    fields: dict[str, Any] = _to_json(record)
    modules = fields.pop("modules")
    head_fields = {"format": _FORMAT, "version": fields.pop("version", VERSION), **fields}
    checksum = with_checksum({**head_fields, "modules": modules})["checksum"]
    head = json.dumps({**head_fields, "checksum": checksum}, allow_nan=False)
    lines = ",\n".join(json.dumps(module, allow_nan=False) for module in modules)
    return f'{head[:-1]}, "modules": [\n{lines}\n]}}\n'


def load_record(path: str | Path) -> XrayRecord:
    """The record in a file that `save_record` wrote. Anything else is refused, and what is wrong is named."""
    content = _read(Path(path))
    try:
        record: XrayRecord = _from_json(XrayRecord, content, "")
    except _WrongError as wrong:
        raise FileError(
            f"{path} is not a whole x-ray: {wrong}\nfix: take it again with: normscope xray TARGET --json FILE"
        ) from None
    return record


def _read(path: Path) -> dict[str, Any]:
    """The fields of the file, which says that it is an x-ray of a version that can be read."""
    again = f"fix: {_AGAIN}"
    content = read_json(path, dict[str, Any], fix=_AGAIN, max_bytes=LARGE_FILE_BYTES)
    if content.get("format") != _FORMAT:
        raise FileError(f"{path} is not an x-ray: it does not begin with the format {_FORMAT!r}\n{again}")
    version: Any = content.get("version")
    if is_integer(version) and version > VERSION:
        raise FileError(
            f"{path} is an x-ray of version {version}, and this normscope reads version {VERSION}\n"
            f"fix: use the normscope that wrote it ({content.get('normscope', 'a later one')!s:.40})"
        )
    if version != VERSION:
        raise FileError(f"{path} is not an x-ray: its version is {version!r:.40}, and should be {VERSION}\n{again}")
    content = without_checksum(content, name=str(path), fix=_AGAIN)
    del content["format"]
    return content


class _WrongError(Exception):
    """A field that cannot be what it says."""


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            if field.default is dataclasses.MISSING or own != field.default:
                found[field.name] = _to_json(own)
        return found
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _from_json(kind: Any, value: Any, where: str) -> Any:
    """The value of this type that JSON's value stands for; `where` is its name in the file."""
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # something, or None
        return None if value is None else _from_json(next(k for k in inner if k is not types.NoneType), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _WrongError(f"{where} is {_shown(value)}, and should be a list")
        if inner[-1] is Ellipsis:
            return tuple(_from_json(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(inner):
            raise _WrongError(f"{where} has {len(value)} items, and should have {len(inner)}")
        return tuple(_from_json(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(inner, value, strict=True)))
    if kind is float:
        return _number(value, where)
    if type(value) is not kind:  # a truth value is no whole number here
        words = {int: "a whole number", str: "a text", bool: "true or false"}
        raise _WrongError(f"{where} is {_shown(value)}, and should be {words[kind]}")
    if kind is int and not -_LARGEST <= value < _LARGEST:
        raise _WrongError(f"{where} is a number that is too large")
    return value


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _WrongError(f"{where or 'it'} is {_shown(value)}, and should be an object")
    prefix, fields = f"{where}." if where else "", {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise _WrongError(f"it has {prefix}{name}, which is not known")
    found = {}
    for name, field in fields.items():
        if name in value:
            found[name] = _from_json(_hints(kind)[name], value[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING:
            raise _WrongError(f"it lacks {prefix}{name}")
    return _fitting(kind(**found), prefix)


def _fitting(made: Any, prefix: str) -> Any:
    """The same, if the lengths of its lists go together."""
    if isinstance(made, ModuleRecord):
        for name in ("fingerprint", "gradient_fingerprint", "input_fingerprint"):
            if len(getattr(made, name)) not in (0, FINGERPRINT_SIZE):
                raise _WrongError(
                    f"{prefix}{name} has {len(getattr(made, name))} items, and should have {FINGERPRINT_SIZE}"
                )
    if isinstance(made, AttentionStats) and not 0 < made.heads == len(made.entropy) == len(made.peaked):
        raise _WrongError(f"{prefix}heads is {made.heads}, and should be how many items entropy and sharpest have")
    return made


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError(f"{where} is {_shown(value)}, and should be a number")
    try:
        return float(value)
    except OverflowError:
        raise _WrongError(f"{where} is a number that is too large") from None


def _shown(value: Any) -> str:
    return f"{value!r:.40}" if value is None or isinstance(value, str | int | float) else type(value).__name__
