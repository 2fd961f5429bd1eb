"""A real browser for tests of pages: Chromium, found or named by NORMSCOPE_BROWSER.

Without Chromium or a built page these tests are skipped, and the summary says so; with NORMSCOPE_REQUIRE_BROWSER=1, as
in CI, that is a failure.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[1] / "web" / "node_modules" / "axe-core" / "axe.min.js"
ARGUMENTS = [
    "--no-sandbox",  # Chromium refuses to start as root otherwise, as in containers
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-angle=swiftshader",  # WebGL without a GPU
    "--enable-unsafe-swiftshader",
    "--disable-gpu-compositing",  # only WebGL: drawing the whole page as if on a GPU takes most of the time
]


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("NORMSCOPE_BROWSER") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, one per worker."""
    pytest.importorskip("playwright.sync_api")
    from normscope.errors import FileError  # here: every test session imports this file
    from normscope.studio.server import static_folder

    path = find_browser()
    try:
        static_folder()
        problem = None if path else "no Chromium found (apt-get install chromium, or set NORMSCOPE_BROWSER)"
    except FileError as error:
        problem = str(error).replace("\n", "; ")
    if problem:
        if os.environ.get("NORMSCOPE_REQUIRE_BROWSER"):
            pytest.fail(f"the browser tests cannot run: {problem}")
        pytest.skip(f"BROWSER TESTS SKIPPED: {problem}")
    with open_browser() as opened:
        yield opened


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        try:
            yield opened
        finally:
            opened.close()


def accessibility_problems(page: Any) -> list[str]:
    """What axe-core finds on the page."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
