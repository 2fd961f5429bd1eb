"""Where results are written, and where they are read from."""

import shlex
from pathlib import Path

DEFAULT_FOLDER = Path("lab")
"""Default of --out."""
PUBLISHED_FOLDER = Path("docs/lab")
"""The results that come with the repository."""


def out_option(folder: str | Path) -> str:
    """Return the --out option for a folder, empty for the default.

    >>> out_option("lab"), out_option("my lab")
    ('', " --out 'my lab'")
    """
    return "" if Path(folder) == DEFAULT_FOLDER else f" --out {shlex.quote(str(folder))}"


def outcome_path(folder: str | Path, claim: str) -> Path:
    return Path(folder) / "claims" / f"{claim}.json"


def results_folder() -> Path:
    """The folder to read if none is given: your own results if there are any, otherwise the published ones."""
    for folder in (DEFAULT_FOLDER, PUBLISHED_FOLDER):
        if any(outcome_path(folder, "any").parent.glob("*.json")):
            return folder
    return DEFAULT_FOLDER
