"""Take the screenshots of docs/studio.md: every tab at two widths, light and dark.

    python -m tests.studio.screenshots RUNS [--lab docs/lab] [--out docs/images/studio]

RUNS is a folder with a trained run "stories".
"""

import argparse
import threading
from pathlib import Path
from typing import Any

from normscope.studio.server import StudioServer
from tests.browser import open_browser

TABS = ("scope", "embedding", "block", "runs", "xray", "lab", "playground")
HEIGHTS = {1280: 860, 390: 844}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--lab", type=Path, default=Path("docs/lab"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/studio"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    server = StudioServer(options.runs, options.lab)
    threading.Thread(target=server.run, daemon=True).start()
    with open_browser() as browser:
        for width, height in HEIGHTS.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                page.set_default_timeout(60_000)
                page.goto(server.address)
                for tab in TABS:
                    page.click(f'nav a[href="#{tab}"]')
                    page.wait_for_selector("main h1")
                    show(page, tab)
                    page.wait_for_timeout(700)
                    page.screenshot(path=options.out / f"{tab}-{width}-{scheme}.png")
                    print(tab, width, scheme, flush=True)
                context.close()
    server.stop()


def show(page: Any, tab: str) -> None:
    """Bring a tab to a state worth a picture."""
    if tab == "block":
        page.wait_for_selector(".diagram")
    elif tab == "runs":
        page.get_by_role("button", name="stories").first.click()
    elif tab == "xray":
        page.wait_for_selector("button.primary:enabled")
        page.click("button.primary")
        page.wait_for_selector(".findings", state="attached")
    elif tab == "lab":
        page.locator(".claims button").nth(2).click()
        page.wait_for_selector(".claim h2")
    elif tab == "playground":
        page.get_by_role("button", name="Generate").first.click()
    page.wait_for_load_state("networkidle")


if __name__ == "__main__":
    main()
