"""What is refused everywhere, without torch: numbers and truth values that cannot be meant."""

import errno
import math
import numbers
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError, DtypeError, FileError


def is_whole(value: object, least: int = 1) -> bool:
    """Whether this is a whole number (numpy's are welcome, truth values are not) of at least so much."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= least


def is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def plain(value: Any) -> Any:
    """A number as Python's own, which JSON can hold and numpy's it cannot; anything else as it is.

    >>> from fractions import Fraction
    >>> plain(Fraction(1, 4)), plain(True), plain("two")
    (0.25, True, 'two')
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_complete(whose: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings read from a file if one is unknown or missing, by name."""
    strange, missing = sorted({*settings} - {*known}), sorted({*known} - {*settings})
    if strange or missing:
        faults = [f"has the unknown setting {name!r}" for name in strange] + [f"lacks {name!r}" for name in missing]
        raise ConfigError(f"{whose} config {' and '.join(faults)}\nfix: use the normscope that wrote it")


LARGEST = 2**53
"""The largest size: up to it float64, and so JSON in most languages, has every whole number."""


def brief(value: object, longest: int = 80) -> str:
    """The value for a message: Python refuses to print numbers of thousands of digits, and nobody reads long ones.

    >>> brief("text"), brief(10**5000), brief([1] * 100, longest=10)
    ("'text'", 'a number of 5001 digits', '[1, 1, 1, ...')
    """
    if isinstance(value, numbers.Integral) and abs(int(value)) >= 10**longest:
        return f"a number of {math.floor(math.log10(abs(int(value)))) + 1} digits"
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def check_positive(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers above zero, by name."""
    for name, size in sizes.items():
        if not is_whole(size):
            raise ConfigError(f"{name}={brief(size)} must be a whole number above zero")
        if size > LARGEST:
            raise ConfigError(f"{name}={brief(size)} must be at most 2^53, {LARGEST:,}")


def check_count(**counts: int) -> None:
    """Refuse what is not a whole number from zero up, by name."""
    for name, count in counts.items():
        if not is_whole(count, least=0):
            raise ConfigError(f"{name}={brief(count)} must be a whole number, zero or more")
        if count > LARGEST:
            raise ConfigError(f"{name}={brief(count)} must be at most 2^53, {LARGEST:,}")


def check_above_zero(**values: float) -> None:
    """Refuse what is not a finite number above zero, by name."""
    for name, value in values.items():
        if not (is_number(value) and 0 < value < math.inf and plain(value) <= sys.float_info.max):
            raise ConfigError(f"{name}={brief(value)} must be a finite number above zero")


def check_flags(**flags: bool) -> None:
    """Refuse what is neither True nor False, by name: a text such as "no" would count as True."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{name}={brief(flag)} must be True or False")


def as_path(path: object, what: str) -> Path:
    """A path that was given as a text or a Path; anything else is refused, and what no file system takes as a name.

    >>> as_path(5, "a run")
    Traceback (most recent call last):
    normscope.errors.DtypeError: a run is given as a path, a str or a Path, but got 5
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise DtypeError(f"{what} is given as a path, a str or a Path, but got {brief(path)}")
    if "\0" in given:
        raise FileError(f"{what} cannot be at {brief(given)}: a path has no NUL character\nfix: give another path")
    check_encodable(Path(os.path.abspath(given)), what)
    try:
        os.lstat(given)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            problem = f"{what} cannot be at {brief(given)}: the name is too long"
            raise FileError(f"{problem}\nfix: choose a shorter one") from None
    return Path(given)


def check_encodable(path: Path, what: str) -> None:
    """Refuse a path of bytes that are no text: neither JSON nor the library that writes tensors can hold it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileError(
            f"{what} cannot be at {brief(str(path))}: the name is not UTF-8\nfix: rename the file or its folder"
        ) from None


SEEDS = 2**64
"""How many seeds there are: what the generators of random numbers take as a key."""


def check_seed(**seeds: int) -> None:
    """Refuse what is not a seed, by name."""
    for name, seed in seeds.items():
        if not (is_whole(seed, least=0) and seed < SEEDS):
            raise ConfigError(
                f"{name}={brief(seed)} must be a whole number from 0 to 2^64 - 1\nfix: {name}=0, for instance"
            )
