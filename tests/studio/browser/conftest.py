"""The studio in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from normscope.studio.server import StudioServer
from tests.studio.serving import running_studio


@pytest.fixture(scope="session")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """A studio whose runs folder has one run, "small"."""
    with running_studio(tmp_path_factory.mktemp("runs")) as server:
        yield server


@pytest.fixture
def studio_page(browser: Any, studio: StudioServer) -> Iterator[Any]:
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
