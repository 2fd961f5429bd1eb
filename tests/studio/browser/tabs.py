"""The tabs of the studio, and what shows that one has loaded."""

from typing import Any

from tests.browser import accessibility_problems

PHONE = {"width": 390, "height": 844}
CONTENT = {
    "scope": ".cube-labels span",
    "embedding": ".pixels button",
    "block": ".diagram [data-module]",
    "runs": "button:has-text('small')",
    "xray": "button.primary:enabled",
    "lab": ".claims button",
    "playground": "textarea",
}


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
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_viewport_size(before)
