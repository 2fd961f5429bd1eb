"""Numbers and texts as people read them."""

import math


def count(number: float) -> str:
    """A number of things, in three digits.

    >>> [count(n) for n in (7, 999, 1000, 12_345, 999_999, 1_234_567, 2_000_000_000, 10**18, 10**30)]
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


def size(bytes_: float) -> str:
    """An amount of memory.

    >>> [size(n) for n in (512 * 2**20, 3 * 2**30, 5 * 2**40, 2**80)]
    ['512 MB', '3.0 GB', '5.0 TB', '1.0e+06 EB']
    """
    for unit, power in (("MB", 20), ("GB", 30), ("TB", 40), ("PB", 50), ("EB", 60)):
        amount = bytes_ / 2**power
        if amount < 1024:
            return f"{amount:.0f} MB" if unit == "MB" else f"{amount:.1f} {unit}"
    return f"{amount:.1e} EB"


def printable(text: str, keep: str = "\n") -> str:
    """The text without what a terminal would obey: line breaks stay, other spaces become a space, the rest a mark.

    Args:
        text: any.
        keep: which of these characters stay as they are.

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


def figure(number: float | None) -> str:
    """Any number in three digits; "-" for none.

    >>> [figure(n) for n in (0.0, 0.5, -12.34, 1234.5, 98765.0, 0.00042, 9.9996, float("nan"), float("-inf"), None)]
    ['0', '0.500', '-12.3', '1234', '9.88e4', '4.20e-4', '10.0', 'nan', '-inf', '-']
    """
    if number is None:
        return "-"
    if number == 0 or not math.isfinite(number):
        return f"{number:.0f}".removeprefix("-" if number == 0 else "")
    mantissa, exponent = f"{number:.2e}".split("e")  # rounded first: 9.9996 is a 10
    power = int(exponent)
    if -3 <= power < 4:
        return f"{number:.{max(0, 2 - power)}f}"
    return f"{mantissa}e{power}" if abs(power) < 100 else f"{number:.1e}"  # never more than eight characters and a sign


def in_one_line(text: str) -> str:
    """The text without line breaks, and without what a terminal would obey.

    >>> in_one_line("one\\n  two")
    'one two'
    """
    return " ".join(printable(text).split())


def many(number: int, thing: str) -> str:
    """A number and what it counts.

    >>> many(1, "batch"), many(2, "batch"), many(0, "step")
    ('1 batch', '2 batches', '0 steps')
    """
    ending = "" if number == 1 else "es" if thing.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {thing}{ending}"
