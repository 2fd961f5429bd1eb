"""A real browser on a running studio. Without Chromium or a built page these tests are skipped; the summary says so.

NORMSCOPE_BROWSER names the browser; with NORMSCOPE_REQUIRE_BROWSER=1, as in CI, a skip is a failure.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from normscope.errors import FileError
from normscope.studio.server import StudioServer, static_folder
from tests.studio.serving import running_studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api")

ARGUMENTS = [
    "--no-sandbox",  # Chromium refuses to start as root otherwise, as in containers
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-angle=swiftshader",  # WebGL without a GPU
    "--enable-unsafe-swiftshader",
]


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("NORMSCOPE_BROWSER") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Chromium, one per worker."""
    path = find_browser()
    try:
        static_folder()
        problem = None if path else "no Chromium found (set NORMSCOPE_BROWSER)"
    except FileError as error:
        problem = str(error).replace("\n", "; ")
    if problem:
        if os.environ.get("NORMSCOPE_REQUIRE_BROWSER"):
            pytest.fail(f"the browser tests cannot run: {problem}")
        pytest.skip(f"BROWSER TESTS SKIPPED: {problem}")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def studio(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """A studio whose runs folder has one run, "small"."""
    with running_studio(tmp_path_factory.mktemp("runs")) as server:
        yield server


@pytest.fixture
def studio_page(browser: "Browser", studio: StudioServer) -> Iterator["Page"]:
    """The studio in a new tab, logged in. Errors in the page and requests to other hosts fail the test."""
    origin = studio.address.partition("/?")[0]
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(15_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda one: problems.append(one.url) if not one.url.startswith((origin, "data:", "blob:")) else None
    )
    page.goto(studio.address)
    yield page
    context.close()
    assert not problems, problems


AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def accessibility_problems(page: "Page") -> list[str]:
    """What axe-core finds on the page."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
