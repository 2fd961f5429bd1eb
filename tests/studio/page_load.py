"""How fast each tab appears, and how much it moves while it loads.

    python -m tests.studio.page_load [RUNS]

Prints, for a desktop and a phone, the first contentful paint and the cumulative layout shift of each tab, each loaded
in a new browser profile. RUNS is a folder of runs; by default a small run that comes with the tests.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from normscope.studio.server import StudioServer
from tests.browser import open_browser
from tests.studio.browser.tabs import CONTENT, DESKTOP, PHONE
from tests.studio.serving import running_studio, serve

OBSERVE = """() => new Promise((done) => {
  let shift = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) shift += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  // The observer is told what happened before in a task of its own.
  setTimeout(() => done([paint ? paint.startTime : NaN, shift]), 100);
})"""


class PageLoad(NamedTuple):
    """First contentful paint in milliseconds, and cumulative layout shift."""

    paint: float
    shift: float


def measure(page: Any, tab: str) -> PageLoad:
    """Measure a tab that was just opened by its address, once its content is there."""
    page.wait_for_selector(f"main {CONTENT[tab]}")
    page.wait_for_load_state("networkidle")
    return PageLoad(*page.evaluate(OBSERVE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?")
    options = parser.parse_args()
    if options.runs is not None:
        with serve(options.runs) as server:
            report(server)
    else:
        with tempfile.TemporaryDirectory() as folder, running_studio(Path(folder)) as server:
            report(server)


def report(server: StudioServer) -> None:
    with open_browser() as browser:
        for size in (DESKTOP, PHONE):
            print(f"{size['width']} x {size['height']}      paint    shift")
            for tab in CONTENT:
                context = browser.new_context(viewport=size)
                page = context.new_page()
                page.goto(f"{server.address}#{tab}")
                found = measure(page, tab)
                print(f"{tab:<14} {found.paint:6.0f} ms {found.shift:8.4f}", flush=True)
                context.close()


if __name__ == "__main__":
    main()
