"""An exported page that a test can call."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def open_page(browser: Any, path: Path, **settings: Any) -> Iterator[Any]:
    """Open an exported page by its file; anything that it logs, throws or requests is an error."""
    context = browser.new_context(**settings)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("request", lambda request: problems.append(f"request: {request.url:.200}"))
    try:
        page.goto(path.resolve().as_uri())
        yield page
        allowed = (f"request: {path.resolve().as_uri():.200}", "request: data:")  # the page itself, and its icon
        assert [problem for problem in problems if not problem.startswith(allowed)] == []
    finally:
        context.close()
