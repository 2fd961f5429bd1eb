"""Numbers and texts as people read them."""

import math


def count(number: float) -> str:
    """A number of things, in three digits.

    >>> [count(n) for n in (7, 999, 1000, 12_345, 999_999, 1_234_567, 2_000_000_000)]
    ['7', '999', '1.00 k', '12.3 k', '1.00 M', '1.23 M', '2.00 G']
    """
    if not math.isfinite(number):
        return "?"
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5 or unit == " T":
            break
        number /= 1000
    if not unit:
        return f"{number:.0f}"
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}{unit}"


def size(bytes_: float) -> str:
    """An amount of memory.

    >>> size(512 * 2**20), size(3 * 2**30)
    ('512 MB', '3.0 GB')
    """
    return f"{bytes_ / 2**30:.1f} GB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.0f} MB"


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> [duration(s) for s in (0.04, 7.24, 59.9, 75, 3600, 7384, 200_000)]
    ['0.0 s', '7.2 s', '1 min 00 s', '1 min 15 s', '1 h 00 min', '2 h 03 min', '2 d 7 h']
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def printable(text: str) -> str:
    """The text without what a terminal would obey: line breaks stay, other spaces become a space, the rest a mark.

    >>> printable("one\\ttwo\\nred\\x1b[31m")
    'one two\\nred�[31m'
    """
    return "".join(
        character
        if character == "\n" or character.isprintable()
        else " "
        if character.isspace()
        else "\N{REPLACEMENT CHARACTER}"
        for character in text.replace("\r\n", "\n")
    )


def quoted(text: str, longest: int = 160) -> str:
    """The text in one line and in quotes, cut where it is too long.

    >>> quoted("Once upon  a time\\nthere was a fox.", longest=20)
    '"Once upon a time th…"'
    """
    line = " ".join(printable(text).split())
    return f'"{line}"' if len(line) <= longest else f'"{line[: longest - 1]}…"'
