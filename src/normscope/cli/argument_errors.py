"""Turn tyro's argument errors into normscope errors.

tyro prints a box and exits; it has no API for the error. So the text of the box is parsed, and unknown text is passed
on unchanged.
"""

import re
from difflib import SequenceMatcher

from normscope.errors import ConfigError

_PATTERNS = {
    r"Error parsing (?P<name>\S+): .*(?:INT|int\(\)).*'(?P<got>.*?)'": (
        "invalid value '{got}' for {name}: expected an integer"
    ),
    r"Error parsing (?P<name>\S+): .*(?:FLOAT|float).*'(?P<got>.*?)'": (
        "invalid value '{got}' for {name}: expected a number"
    ),
    r"Unrecognized options: (?P<got>-[^\s,]+).*(?:meant|similar to (?P=got)): +(?P<close>.*--[a-z].*)": (
        "unexpected argument '{got}'\nfix: did you mean '{close}'?"
    ),
    r"Unrecognized options: (?P<got>-[^\s,]+|\S+)": "unexpected argument '{got}'",
    r"invalid choice '(?P<got>.*?)' for argument '(?P<name>.*?)'\. Expected one of \((?P<choices>.*?)\)": (
        "invalid value '{got}' for {name}\nfix: use one of {choices}"
    ),
    r"Missing value for argument '(?P<name>\S+)'": "a value is required for {name}",
    r"Missing from .*?: (?P<name>--\S+ \S+|\S+)": "missing required argument {name}",
    r"Expected one of {(?P<choices>.*?)}": "missing subcommand\nfix: use one of {choices}",
}
"""Patterns of tyro's messages, and the message to raise."""


def argument_error(box: str) -> ConfigError:
    """Parse the error box that tyro printed.

    >>> print(argument_error("│ Missing value for argument '--steps'. Expected 1 values. │"))
    a value is required for --steps
    fix: normscope help
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip().removeprefix("│").removesuffix("│").strip() for line in plain.splitlines()]
    text = " ".join(line for line in lines if line and line[0] not in "╭╰─")
    text, _, after = text.partition(" For full helptext")
    message = next(
        (ours.format(**_parts(match)) for pattern, ours in _PATTERNS.items() if (match := re.search(pattern, text))),
        text,
    )
    if "\nfix: " in message:
        return ConfigError(message)
    help_ = re.search(r"normscope.* --help", after)
    return ConfigError(f"{message}\nfix: {help_[0] if help_ else 'normscope help'}")


def _parts(match: re.Match[str]) -> dict[str, str]:
    parts = match.groupdict()
    if "name" in parts:  # of an option with an alias, tyro shows both
        parts["name"] = parts["name"].partition("/")[0]
    if "close" in parts:  # tyro's help of all similar options
        options = re.findall(r"(?<![\w-])--[\w-]+", parts["close"])
        parts["close"] = max(options, key=lambda option: SequenceMatcher(None, option, parts["got"]).ratio())
    if "choices" in parts:  # as Python prints them: unordered, and with None for optional values
        parts["choices"] = ", ".join(sorted({*re.findall(r"[\w-]+", parts["choices"])} - {"None"}))
    return parts
