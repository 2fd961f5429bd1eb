"""The studio in a real browser. Loading the page costs seconds, so most tests share one page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from normscope.studio.server import StudioServer
from tests.studio.browser.tabs import DESKTOP
from tests.studio.serving import running_studio


@pytest.fixture(scope="session")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """A studio whose runs folder has one run, "small"."""
    with running_studio(tmp_path_factory.mktemp("runs")) as server:
        yield server


@contextmanager
def open_studio_page(browser: Any, studio: StudioServer) -> Iterator[tuple[Any, list[str]]]:
    """The studio in a new browser profile, logged in; with a list of its errors and of requests to other hosts."""
    from playwright.sync_api import expect

    origin = studio.address.partition("/?")[0]
    context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
    page = context.new_page()
    expect.set_options(timeout=60_000)
    page.set_default_timeout(60_000)  # for slow machines, and the first call of a kernel compiles it
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda one: problems.append(one.url) if not one.url.startswith((origin, "data:", "blob:")) else None
    )
    page.goto(studio.address + "#xray")  # the tab that loads least
    page.wait_for_selector("main h1")
    yield page, problems
    context.close()


@pytest.fixture
def new_page(browser: Any, studio: StudioServer) -> Iterator[Any]:
    """A page of its own that has loaded nothing but the tab "X-ray"."""
    with open_studio_page(browser, studio) as (page, problems):
        yield page
    assert not problems, problems


@pytest.fixture(scope="session")
def shared_page(browser: Any, studio: StudioServer) -> Iterator[tuple[Any, list[str]]]:
    with open_studio_page(browser, studio) as opened:
        yield opened


@pytest.fixture
def studio_page(shared_page: tuple[Any, list[str]]) -> Iterator[Any]:
    """The shared page. Most tabs forget what was chosen in them when they are left, so tests find them as new."""
    page, problems = shared_page
    yield page
    found = problems.copy()
    problems.clear()
    leave(page)
    assert not found, found


def leave(page: Any) -> None:
    """Undo what a test changed outside of its tab, and leave the tab."""
    for other in page.context.pages:
        if other != page:
            other.close()
    page.context.set_offline(False)
    if page.viewport_size != DESKTOP:
        page.set_viewport_size(DESKTOP)
    if page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches"):
        page.emulate_media(color_scheme="light")
    if "#runs" in page.url or page.evaluate("() => localStorage.length"):  # open runs, the language, the theme
        page.evaluate("() => localStorage.clear()")
        page.reload()
    other_tab = "lab" if page.url.endswith("#xray") else "xray"
    page.click(f'nav a[href="#{other_tab}"]')
    page.wait_for_selector(f'nav a[href="#{other_tab}"][aria-current]')
