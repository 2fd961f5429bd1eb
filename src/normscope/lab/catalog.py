"""All claims, by name and number: NAME.py has the experiment of a claim, NAME.toml its texts."""

import importlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from normscope.checks import did_you_mean
from normscope.errors import ConfigError
from normscope.lab import claims, toolkit
from normscope.lab.claim import Claim, Experiment
from normscope.storage.json_files import JsonSource, StrictStruct

FOLDER = Path(claims.__file__).parent
FIX = "see the other .toml files of the lab for fields and placeholders"
_ClaimTexts = msgspec.defstruct(
    "_ClaimTexts",
    [
        (one.name, one.type) if one.default is MISSING else (one.name, one.type, one.default)
        for one in fields(Claim)
        if one.name not in ("name", "experiment")
    ],
    bases=(StrictStruct,),
)
"""What a TOML file contains: all other fields of a claim."""


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return all claims by number."""
    files = [path for path in FOLDER.rglob("*.*") if path.suffix in (".py", ".toml") and path.stem != "__init__"]
    found = sorted(map(_load, {path.with_suffix("") for path in files}), key=lambda claim: claim.number)
    for one, other in pairwise(found):
        if one.number == other.number:
            raise ConfigError(f"the claims {one.name!r} and {other.name!r} have the same number {one.number}")
    return tuple(found)


def _load(path: Path) -> Claim:
    """Load the claim of two files; `path` is without the suffix."""
    module = f"{claims.__name__}.{'.'.join(path.relative_to(FOLDER).parts)}"
    constants = {**vars(toolkit), **vars(importlib.import_module(module))}
    experiment = constants.get("EXPERIMENT")
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"{path}.py has no EXPERIMENT\nfix: define EXPERIMENT = Experiment(...), or move the file")
    name = path.name.replace("_", "-")
    return Claim(name, experiment, **read_claim_texts(path.with_suffix(".toml"), constants))


def read_claim_texts(path: Path, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Read and check the TOML file of a claim; `constants` are those of its module and of the toolkit."""
    texts = read_texts(path, constants)
    return msgspec.structs.asdict(JsonSource(path, FIX, ConfigError).convert(texts, _ClaimTexts))


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


def choose_claims(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names or numbers, each once, by number."""
    known = {claim.name: claim for claim in all_claims()}
    numbers = {str(claim.number): claim.name for claim in all_claims()}
    chosen = set()
    for name in names:
        name = numbers.get(name, name)
        if name not in known:
            fix = did_you_mean(name, known, "run `normscope lab list` for the names")
            raise ConfigError(f"unknown claim {name!r}\nfix: {fix}")
        chosen.add(name)
    return [claim for claim in all_claims() if claim.name in chosen]
