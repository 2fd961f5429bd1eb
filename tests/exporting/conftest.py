"""A browser for the exported pages. Without it or the built page, their tests are skipped with a loud line."""

import shutil
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from tests.exporting.browser import open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    missing = [
        *([] if shutil.which("chromium") else ["chromium (apt-get install chromium)"]),
        *([] if (files("normscope") / "studio/static/export.html").is_file() else ["the built page (make studio)"]),
    ]
    if missing:
        pytest.skip(f"SKIPPED: NO TEST OF EXPORTED PAGES RAN, because this is missing: {' and '.join(missing)}")
    with open_browser() as opened:
        yield opened
