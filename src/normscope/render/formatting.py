"""Format numbers, sizes, durations and text for display."""

import math
from collections.abc import Sequence


def format_count(number: float) -> str:
    """Format a count with three digits and an SI suffix.

    >>> [format_count(n) for n in (7, 999, 1000, 12_345, 999_999, 1_234_567, 2_000_000_000, 10**18, 10**30)]
    ['7', '999', '1.00 k', '12.3 k', '1.00 M', '1.23 M', '2.00 G', '1.00 E', '1.0e+30']
    """
    if not math.isfinite(number):
        return "?"
    if abs(number) >= 1e21:
        return f"{number:.1e}"
    for unit in ("", " k", " M", " G", " T", " P", " E"):
        if abs(number) < 999.5 or unit == " E":
            break
        number /= 1000
    if not unit:
        return f"{number:.0f}"
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}{unit}"


def format_compact(count: int) -> str:
    """Format a count with one decimal and a letter, where there is little space.

    >>> [format_compact(count) for count in (768, 589_824, 7_077_888, 124_475_904, 6_738_415_616)]
    ['768', '589.8k', '7.1M', '124.5M', '6.7B']
    """
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def format_bytes(bytes_: float) -> str:
    """Format a size in bytes with a binary unit.

    >>> [format_bytes(n) for n in (512 * 2**20, 3 * 2**30, 5 * 2**40, 2**80)]
    ['512 MB', '3.0 GB', '5.0 TB', '1.0e+06 EB']
    """
    for unit, power in (("MB", 20), ("GB", 30), ("TB", 40), ("PB", 50), ("EB", 60)):
        amount = bytes_ / 2**power
        if amount < 1024:
            return f"{amount:.0f} MB" if unit == "MB" else f"{amount:.1f} {unit}"
    return f"{amount:.1e} EB"


def printable(text: str, keep: str = "\n") -> str:
    """Replace control characters: line breaks stay, other whitespace becomes a space, the rest U+FFFD.

    Args:
        text: the text.
        keep: characters to keep unchanged.

    >>> printable("one\\ttwo\\nred\\x1b[31m")
    'one two\\nred�[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep or character.isprintable()
        else " "
        if character.isspace()
        else "\N{REPLACEMENT CHARACTER}"
        for character in text.replace("\r\n", "\n")
    )


def format_number(number: float | None) -> str:
    """Format a number with three significant digits; "-" for None.

    >>> [format_number(n) for n in (0.0, 0.5, -12.34, 1234.5, 98765.0, 0.00042, 9.9996)]
    ['0', '0.500', '-12.3', '1234', '9.88e4', '4.20e-4', '10.0']
    >>> [format_number(n) for n in (float("nan"), float("-inf"), None)]
    ['nan', '-inf', '-']
    """
    if number is None:
        return "-"
    if number == 0 or not math.isfinite(number):
        return f"{number:.0f}".removeprefix("-" if number == 0 else "")
    mantissa, exponent = f"{number:.2e}".split("e")  # round first: 9.9996 becomes 10
    power = int(exponent)
    if -3 <= power < 4:
        return f"{number:.{max(0, 2 - power)}f}"
    return f"{mantissa}e{power}" if abs(power) < 100 else f"{number:.1e}"  # at most eight characters and a sign


def one_line(text: str) -> str:
    """Join the text into one line, without control characters.

    >>> one_line("one\\n  two")
    'one two'
    """
    return " ".join(printable(text).split())


def pluralize(number: int, thing: str) -> str:
    """Format a count with its noun in singular or plural.

    >>> pluralize(1, "batch"), pluralize(2, "batch"), pluralize(0, "step")
    ('1 batch', '2 batches', '0 steps')
    """
    ending = "" if number == 1 else "es" if thing.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {thing}{ending}"


def all_of(number: int, thing: str) -> str:
    """Name all of some things, which may be one.

    >>> all_of(4, "head"), all_of(1, "head")
    ('all 4 heads', 'the only head')
    """
    return f"the only {thing}" if number == 1 else f"all {pluralize(number, thing)}"


def format_fixed(number: float) -> str:
    """Format a number with a fixed number of decimals, for columns.

    >>> [format_fixed(n) for n in (1.8344, 0.4, 123.4, 2e-5, 4e6)]
    ['1.834', '0.400', '123.400', '2.00e-05', '4.00e+06']
    """
    return f"{number:.3f}" if 1e-3 <= abs(number) < 1e3 else f"{number:.2e}"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> [format_duration(s) for s in (0.04, 7.24, 59.9, 75, 3600, 7384, 200_000)]
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


def quote(text: str, longest: int = 160) -> str:
    """Quote the text in one line, truncated if it is too long.

    >>> quote("Once upon  a time\\nthere was a fox.", longest=20)
    '"Once upon a time th…"'
    """
    return f'"{truncate(text, longest)}"'


def truncate(text: str, longest: int) -> str:
    """Join the text into one line, truncated if it is too long.

    >>> truncate("attention", 6)
    'atten…'
    """
    line = one_line(text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def format_short(number: float) -> str:
    """Format a number with up to three significant digits, without trailing zeros.

    >>> format_short(0.000123456), format_short(12.0), format_short(1234567.0)
    ('0.000123', '12', '1.23e+06')
    """
    return f"{number:.3g}"


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage.

    >>> format_percent(0.5), format_percent(0.0012)
    ('50%', '0.12%')
    """
    return f"{100 * fraction:.3g}%"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words with commas and a final "and".

    >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
