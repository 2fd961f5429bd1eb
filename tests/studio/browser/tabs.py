"""The tabs of the studio, and what shows that one has loaded."""

from typing import Any

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
