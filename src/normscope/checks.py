"""Argument checks that do not need torch."""

import dataclasses
import difflib
import errno
import math
import numbers
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import Any

from normscope.errors import ArgumentTypeError, ConfigError, FileError


def is_integer(value: object, least: int = 1) -> bool:
    """Return whether the value is an integer (numpy integers included, bools excluded) of at least `least`."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= least


def is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def to_python_number(value: Any) -> Any:
    """Convert a number to int or float, which JSON supports, unlike numpy numbers; return other values unchanged.

    >>> from fractions import Fraction
    >>> to_python_number(Fraction(1, 4)), to_python_number(True), to_python_number("two")
    (0.25, True, 'two')
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_fields(whose: str, settings: Iterable[str], kind: type) -> None:
    """Check settings read from a file against a dataclass: no unknown fields, and all those without a default."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    required = {name for name, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING}
    unknown, missing = sorted({*settings} - fields.keys()), sorted(required - {*settings})
    if unknown or missing:
        problems = [f"has the unknown setting {name!r}" for name in unknown] + [f"lacks {name!r}" for name in missing]
        raise ConfigError(f"{whose} config {' and '.join(problems)}\nfix: use the normscope that wrote it")


def check_setting_names(owner: str, names: Iterable[str], kind: type) -> None:
    """Check keyword arguments against the fields of a dataclass; the error for an unknown name suggests a similar one.

    >>> check_setting_names("a run", ["tmie"], dataclasses.make_dataclass("Config", ["time"]))
    Traceback (most recent call last):
    normscope.errors.ConfigError: a run has no setting 'tmie'; did you mean 'time'?
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"the settings are: {', '.join(known)}")
            raise ConfigError(f"{owner} has no setting {name!r}; {hint}")


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Suggest the most similar of the known names; without one, list them, or say something else.

    >>> did_you_mean("lama", ["gpt2", "llama"]), did_you_mean("bert", ["gpt2", "llama"])
    ("did you mean 'llama'?", 'use one of: gpt2, llama')
    """
    close = difflib.get_close_matches(str(name), known := list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"use one of: {', '.join(known)}"


MAX_SIZE = 2**53
"""The largest size: up to it, float64 (and JSON in most languages) represents every integer."""


def short_repr(value: object, longest: int = 80) -> str:
    """Return a short repr for messages. Python raises for integers of thousands of digits.

    >>> short_repr("text"), short_repr(10**5000), short_repr([1] * 100, longest=10)
    ("'text'", 'a number of 5001 digits', '[1, 1, 1, ...')
    """
    if isinstance(value, numbers.Integral) and abs(int(value)) >= 10**longest:
        return f"a number of {math.floor(math.log10(abs(int(value)))) + 1} digits"
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def check_positive_int(**sizes: int) -> None:
    """Check that the named sizes are positive integers."""
    _check_integers(sizes, 1, "a positive integer")


def check_non_negative(**counts: int) -> None:
    """Check that the named values are non-negative integers."""
    _check_integers(counts, 0, "a non-negative integer")


def _check_integers(values: dict[str, int], least: int, wanted: str) -> None:
    for name, value in values.items():
        if not is_integer(value, least):
            raise ConfigError(f"{name}={short_repr(value)} must be {wanted}")
        if value > MAX_SIZE:
            raise ConfigError(f"{name}={short_repr(value)} must be at most 2^53, {MAX_SIZE:,}")


def check_positive_number(**values: float) -> None:
    """Check that the named values are finite and positive."""
    for name, value in values.items():
        if not (is_number(value) and 0 < value < math.inf and to_python_number(value) <= sys.float_info.max):
            raise ConfigError(f"{name}={short_repr(value)} must be a finite number above zero")


def check_flags(**flags: bool) -> None:
    """Check that the named values are bools: a string such as "no" would be truthy."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{name}={short_repr(flag)} must be True or False")


def as_path(path: object, what: str) -> Path:
    """Convert a str or PathLike to a Path; raise for other types and for names that no file system accepts.

    >>> as_path(5, "a run")
    Traceback (most recent call last):
    normscope.errors.ArgumentTypeError: a run must be a path (str or Path), but got 5
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise ArgumentTypeError(f"{what} must be a path (str or Path), but got {short_repr(path)}")
    if "\0" in given:
        raise FileError(f"{what} cannot be at {short_repr(given)}: a path cannot contain NUL\nfix: use another path")
    check_encodable(Path(os.path.abspath(given)), what)
    try:
        os.lstat(given)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            problem = f"{what} cannot be at {short_repr(given)}: the name is too long"
            raise FileError(f"{problem}\nfix: choose a shorter one") from None
    return Path(given)


def check_encodable(path: Path, what: str) -> None:
    """Reject a path that is not valid UTF-8: JSON and safetensors cannot store it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileError(
            f"{what} cannot be at {short_repr(str(path))}: the name is not UTF-8\nfix: rename the file or its folder"
        ) from None


SEED_LIMIT = 2**64
"""Seeds are below this limit, the key size of the random number generators."""


def check_seed(**seeds: int) -> None:
    """Check that the named values are valid seeds."""
    for name, seed in seeds.items():
        if not (is_integer(seed, least=0) and seed < SEED_LIMIT):
            wanted = f"must be an integer from 0 to 2^64 - 1\nfix: {name}=0, for instance"
            raise ConfigError(f"{name}={short_repr(seed)} {wanted}")


def check_config(config: object, kind: type, taker: str, otherwise: str = "") -> None:
    """Check the type of a config; the error for a function suggests calling it."""
    if isinstance(config, kind):
        return
    made = f"make one with {kind.__name__}(...){otherwise}"
    got = repr(config) if config is None or isinstance(config, str | int | float) else _a(type(config).__name__)
    if isinstance(config, FunctionType):
        got, made = f"the function {config.__name__}", f"call it: {config.__name__}()"
    elif isinstance(config, type):
        got = f"the class {config.__name__}"
        made = f"call it: {config.__name__}(...)" if issubclass(config, kind) else made
    raise ConfigError(f"{taker} expects {_a(kind.__name__)}, but got {got}; {made}")


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
