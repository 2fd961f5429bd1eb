"""All claims, by name and number."""

import difflib
import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from normscope.errors import ConfigError
from normscope.lab import claims
from normscope.lab.claim import Claim


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return all claims by number. Each is the `CLAIM` of a file in `claims`."""
    modules = [name for _, name, _ in pkgutil.iter_modules(claims.__path__)]
    return tuple(sorted(map(_claim_in, modules), key=lambda claim: claim.number))


def _claim_in(name: str) -> Claim:
    claim = getattr(importlib.import_module(f"{claims.__name__}.{name}"), "CLAIM", None)
    if not isinstance(claim, Claim):
        raise ConfigError(f"lab/claims/{name}.py has no CLAIM\nfix: define CLAIM = Claim(...), or move the file")
    return claim


def choose_claims(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names or numbers, each once, by number."""
    known = {claim.name: claim for claim in all_claims()}
    numbers = {str(claim.number): claim.name for claim in all_claims()}
    chosen = set()
    for name in names:
        name = numbers.get(name, name)
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {close[0]!r}?" if close else "run `normscope lab list` for the names"
            raise ConfigError(f"unknown claim {name!r}\nfix: {fix}")
        chosen.add(name)
    return [claim for claim in all_claims() if claim.name in chosen]
