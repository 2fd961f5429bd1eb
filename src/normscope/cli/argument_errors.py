"""What tyro says of arguments that it cannot read, as an error of normscope's own.

tyro draws a box and ends the program; it has no other way to tell what was wrong. So the words in the box are read, and
where they are not known they are passed on as they are.
"""

import re

from normscope.errors import ConfigError

_KNOWN = {
    r"Error parsing (?P<name>\S+): .*(?:INT|int\(\)).*'(?P<got>.*?)'": "{name} '{got}' is not a whole number",
    r"Error parsing (?P<name>\S+): .*(?:FLOAT|float).*'(?P<got>.*?)'": "{name} '{got}' is not a number",
    r"Unrecognized options: (?P<got>-[^\s,]+).*(?:meant|similar to (?P=got)): +(?P<close>--\S+)": (
        "there is no option {got}\nfix: did you mean {close}?"
    ),
    r"Unrecognized options: (?P<got>-[^\s,]+)": "there is no option {got}",
    r"Unrecognized options: (?P<got>\S+)": "'{got}' is one word too many",
    r"invalid choice '(?P<got>.*?)' for argument '(?P<name>.*?)'\. Expected one of \((?P<choices>.*?)\)": (
        "{name} '{got}' cannot be chosen\nfix: one of {choices}"
    ),
    r"Missing value for argument '(?P<name>\S+)'": "{name} needs a value",
    r"Missing from .*?: (?P<name>--\S+ \S+|\S+)": "{name} is missing",
    r"Expected one of {(?P<choices>.*?)}": "a word is missing\nfix: one of {choices}",
}
"""tyro's words, and ours."""


def argument_error(box: str) -> ConfigError:
    """The error that tyro drew as a box.

    >>> print(argument_error("│ Missing value for argument '--steps'. Expected 1 values. │"))
    --steps needs a value
    fix: normscope help
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip().removeprefix("│").removesuffix("│").strip() for line in plain.splitlines()]
    words = " ".join(line for line in lines if line and line[0] not in "╭╰─")
    words, _, after = words.partition(" For full helptext")
    told = next(
        (ours.format(**_parts(found)) for known, ours in _KNOWN.items() if (found := re.search(known, words))), words
    )
    if "\nfix: " in told:
        return ConfigError(told)
    help_ = re.search(r"normscope.* --help", after)
    return ConfigError(f"{told}\nfix: {help_[0] if help_ else 'normscope help'}")


def _parts(found: re.Match[str]) -> dict[str, str]:
    parts = found.groupdict()
    if "choices" in parts:  # as Python writes them, in any order, and with a None for what may be left out
        parts["choices"] = ", ".join(sorted({*re.findall(r"[\w-]+", parts["choices"])} - {"None"}))
    return parts
