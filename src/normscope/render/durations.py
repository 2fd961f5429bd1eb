"""Numbers and texts as people read them."""

import math

from normscope.render.formatting import printable


def steady(number: float) -> str:
    """A number with the same digits after the point each time, so that a column of them can be read.

    >>> [steady(n) for n in (1.8344, 0.4, 123.4, 2e-5, 4e6)]
    ['1.834', '0.400', '123.400', '2.00e-05', '4.00e+06']
    """
    return f"{number:.3f}" if 1e-3 <= abs(number) < 1e3 else f"{number:.2e}"


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


def quoted(text: str, longest: int = 160) -> str:
    """The text in one line and in quotes, cut where it is too long.

    >>> quoted("Once upon  a time\\nthere was a fox.", longest=20)
    '"Once upon a time th…"'
    """
    line = " ".join(printable(text).split())
    return f'"{line}"' if len(line) <= longest else f'"{line[: longest - 1]}…"'
