"""Save and load records as JSON, one module per line, without loss.

Fields with their default value are omitted. Non-finite numbers, which JSON lacks, are the strings nan, inf and -inf.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

from normscope.diagnostics.record import FINGERPRINT_SIZE, VERSION, ModuleRecord, XrayRecord
from normscope.diagnostics.stats.tensors import AttentionStats
from normscope.errors import FileError
from normscope.storage.files import with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, FileFormat, JsonSource, read_json

RECORD_FORMAT = FileFormat(VERSION)
"""The version of the fields of a record; a file has it as `version`, beside the name of the format."""
_FORMAT = "normscope x-ray"
_FIX = "pass a file written by `normscope xray TARGET --json FILE`"
_MAX_INT = 2**63
"""Integers are counts and sizes, which fit in 64 bits."""
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def save_record(record: XrayRecord, path: str | Path) -> None:
    """Write a record to a file atomically.

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
    """The content of the file that `save_record` writes."""
    fields: dict[str, Any] = to_json(record)
    modules = fields.pop("modules")
    head_fields = {"format": _FORMAT, "version": fields.pop("version", VERSION), **fields}
    checksum = with_checksum({**head_fields, "modules": modules})["checksum"]
    head = json.dumps({**head_fields, "checksum": checksum}, allow_nan=False)
    lines = ",\n".join(json.dumps(module, allow_nan=False) for module in modules)
    return f'{head[:-1]}, "modules": [\n{lines}\n]}}\n'


def load_record(path: str | Path) -> XrayRecord:
    """Load a record from a file that `save_record` wrote, now or in an older format; raise FileError for others."""
    source = JsonSource(path, _FIX)
    content = read_json(path, dict[str, Any], fix=_FIX, max_bytes=LARGE_FILE_BYTES)
    if content.get("format") != _FORMAT:
        raise source.problem(f"is not an x-ray: its format is not {_FORMAT!r}")
    content = source.without_checksum(content)
    content = source.migrate({**content, "format": content.pop("version", None)}, RECORD_FORMAT)
    try:
        record: XrayRecord = _from_json(XrayRecord, content, "")
    except _InvalidFieldError as error:
        raise FileError(
            f"{path} is not a valid x-ray: {error}\nfix: take the x-ray again: normscope xray TARGET --json FILE"
        ) from None
    return record


class _InvalidFieldError(Exception):
    """A field with an invalid value."""


def to_json(value: Any) -> Any:
    """Convert dataclasses, without fields that have their default, tuples, and NaN and Inf, which become text.

    >>> to_json({"loss": [1.0, float("nan"), -float("inf")]})
    {'loss': [1.0, 'nan', '-inf']}
    """
    if dataclasses.is_dataclass(value):
        # A field without a default has MISSING, which equals no value.
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: to_json(own) for field, own in fields if own != field.default}
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _from_json(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value to this type; `where` is its path in the file."""
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # T | None
        return None if value is None else _from_json(next(k for k in inner if k is not types.NoneType), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _InvalidFieldError(f"{where} is {_shown(value)}, expected a list")
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(value) != len(kinds):
            raise _InvalidFieldError(f"{where} has {len(value)} items, expected {len(kinds)}")
        return tuple(_from_json(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if kind is float:
        number: Any = _NON_FINITE.get(value) if isinstance(value, str) else value
        if type(number) not in (int, float):
            raise _InvalidFieldError(f"{where} is {_shown(value)}, expected a number")
        return float(number)
    if type(value) is not kind:  # bool is not accepted as int
        names = {int: "an integer", str: "a string", bool: "true or false"}
        raise _InvalidFieldError(f"{where} is {_shown(value)}, expected {names[kind]}")
    if kind is int and not -_MAX_INT <= value < _MAX_INT:
        raise _InvalidFieldError(f"{where} is too large")
    return value


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _InvalidFieldError(f"{where or 'the file'} is {_shown(value)}, expected an object")
    prefix, fields = f"{where}." if where else "", {field.name: field for field in dataclasses.fields(kind)}
    found = {}
    if unknown := value.keys() - fields.keys():
        raise _InvalidFieldError(f"unknown field {prefix}{min(unknown)}")
    for name, field in fields.items():
        if name in value:
            found[name] = _from_json(_hints(kind)[name], value[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING:
            raise _InvalidFieldError(f"missing field {prefix}{name}")
    return _check_lengths(kind(**found), prefix)


def _check_lengths(made: Any, prefix: str) -> Any:
    """Return the object after checking the lengths of its lists."""
    if isinstance(made, ModuleRecord):
        for name in ("fingerprint", "gradient_fingerprint", "input_fingerprint"):
            size = len(getattr(made, name))
            if size not in (0, FINGERPRINT_SIZE):
                raise _InvalidFieldError(f"{prefix}{name} has {size} items, expected {FINGERPRINT_SIZE}")
    if isinstance(made, AttentionStats) and not 0 < made.heads == len(made.entropy) == len(made.peaked):
        raise _InvalidFieldError(
            f"{prefix}heads is {made.heads}, but entropy has {len(made.entropy)} and peaked {len(made.peaked)} items"
        )
    return made


def _shown(value: Any) -> str:
    return f"{value!r:.40}" if value is None or isinstance(value, str | int | float) else type(value).__name__
