"""Take the screenshots of docs/studio.md: every tab at two widths, light and dark.

    python -m tests.studio.screenshots RUNS [--lab docs/lab] [--out docs/images/studio]

RUNS is a folder with a trained run "stories".
"""

import argparse
from pathlib import Path
from typing import Any

from tests.browser import open_browser
from tests.studio.browser.tabs import CONTENT, DESKTOP, PHONE
from tests.studio.serving import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--lab", type=Path, default=Path("docs/lab"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/studio"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with serve(options.runs, options.lab) as server, open_browser() as browser:
        for size in (DESKTOP, PHONE):
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport=size, color_scheme=scheme)
                page = context.new_page()
                page.set_default_timeout(60_000)
                page.goto(server.address)
                for tab in CONTENT:
                    page.click(f'nav a[href="#{tab}"]')
                    page.wait_for_selector("main h1")
                    show(page, tab)
                    page.wait_for_timeout(700)
                    page.screenshot(path=options.out / f"{tab}-{size['width']}-{scheme}.png")
                    print(tab, size["width"], scheme, flush=True)
                context.close()


def show(page: Any, tab: str) -> None:
    """Bring a tab to a state worth a picture."""
    if tab == "block":
        page.wait_for_selector(".diagram")
    elif tab == "runs":
        page.get_by_role("button", name="stories").first.click()
    elif tab == "xray":
        page.wait_for_selector("button.primary:enabled")
        page.click("button.primary")
        page.wait_for_selector(".modules")
    elif tab == "lab":
        page.locator(".claims button").nth(2).click()
        page.wait_for_selector(".claim h2")
    elif tab == "playground":
        page.locator(".prompt-form button.primary").click()
        page.wait_for_selector(".lens table")
        page.wait_for_selector(".heads canvas")
    page.wait_for_load_state("networkidle")


if __name__ == "__main__":
    main()
