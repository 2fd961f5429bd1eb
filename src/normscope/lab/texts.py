"""Texts in TOML files, with placeholders for the constants that they mention."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError

FIX = "see the other .toml files of the lab for fields and placeholders"


def read_texts(path: Path, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Read a TOML file; line breaks in its texts become spaces.

    Args:
        path: the file.
        constants: values of the placeholders, such as {TOLERANCE:.0%}.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return {
            name: " ".join(value.split()).format_map(constants) if isinstance(value, str) else value
            for name, value in content.items()
        }
    except KeyError as error:
        raise ConfigError(f"{path} has an unknown placeholder {{{error.args[0]}}}\nfix: {FIX}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not valid: {error}\nfix: {FIX}") from None
