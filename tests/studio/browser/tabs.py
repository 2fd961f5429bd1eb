"""The tabs of the studio, and what shows that one has loaded."""

from typing import Any

from tests.browser import accessibility_problems

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
CONTENT = {
    "scope": ".cube-labels span",
    "embedding": ".pixels button",
    "block": ".diagram [data-module]",
    "runs": ".run-table button",
    "xray": "button.primary:enabled",
    "lab": ".claims button",
    "playground": "textarea",
}


# How many pixels a page can be scrolled sideways. Its width is that of the body, which leaves room for a scroll bar.
TOO_WIDE = "() => document.documentElement.scrollWidth - Math.round(document.body.getBoundingClientRect().width)"


def open_tab(page: Any, name: str) -> Any:
    """Open a tab and wait for its content."""
    page.click(f'nav a[href="#{name}"]')
    page.wait_for_selector(f"main {CONTENT[name]}")
    return page


def check_page(page: Any) -> None:
    """axe-core finds nothing, there is one main heading, and nothing is wider than a phone."""
    assert accessibility_problems(page) == []
    assert page.locator("h1").count() == 1
    before = page.viewport_size
    page.set_viewport_size(PHONE)
    assert page.evaluate(TOO_WIDE) == 0
    page.set_viewport_size(before)
