"""The frame of the page: tabs, language, theme, keyboard, accessibility, size on a phone, lost connections."""

from typing import Any

import pytest

from tests.browser import accessibility_problems

TABS = ["scope", "embedding", "block", "runs", "xray", "lab", "playground"]


def open_tab(page: Any, name: str) -> None:
    page.click(f'nav a[href="#{name}"]')
    page.wait_for_selector("main h1")


@pytest.mark.parametrize("tab", TABS)
def test_tab_is_accessible_and_fits(studio_page: Any, tab: str) -> None:
    """axe-core finds nothing, light and dark, on a desktop and on a phone; nothing is wider than the phone."""
    open_tab(studio_page, tab)
    studio_page.wait_for_load_state("networkidle")
    assert accessibility_problems(studio_page) == []
    assert studio_page.locator("h1").count() == 1
    studio_page.emulate_media(color_scheme="dark")
    studio_page.set_viewport_size({"width": 390, "height": 844})
    assert studio_page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert accessibility_problems(studio_page) == []


def test_language_and_theme_are_kept(studio_page: Any) -> None:
    studio_page.get_by_role("button", name="中文").click()
    assert studio_page.locator("html").get_attribute("lang") == "zh-CN"
    studio_page.locator("header select").select_option("dark")
    studio_page.reload()
    assert studio_page.locator("html").get_attribute("lang") == "zh-CN"
    background = studio_page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(13, 17, 23)"


def test_keyboard_reaches_content_first(studio_page: Any) -> None:
    studio_page.wait_for_selector("main h1")
    studio_page.keyboard.press("Tab")
    studio_page.keyboard.press("Enter")
    assert studio_page.evaluate("() => document.activeElement.id") == "main"


def test_address_is_shared_without_the_token(studio_page: Any) -> None:
    assert "token" not in studio_page.url


def test_a_tab_opened_without_a_connection_loads_when_it_is_back(studio_page: Any) -> None:
    studio_page.wait_for_selector("main h1")
    studio_page.context.set_offline(True)
    studio_page.click('nav a[href="#lab"]')
    studio_page.get_by_text("The connection to the server is lost").wait_for()
    studio_page.context.set_offline(False)
    studio_page.get_by_role("heading", name="Lab", level=1).wait_for()
    studio_page.get_by_text("The connection to the server is lost").wait_for(state="hidden")


def test_first_paint_and_layout(studio_page: Any) -> None:
    """Nothing moves after the first paint."""
    studio_page.reload()
    studio_page.wait_for_selector("main h1")
    studio_page.wait_for_load_state("networkidle")
    shift = studio_page.evaluate(
        """() => new Promise((done) => {
          let sum = 0;
          new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
            .observe({ type: "layout-shift", buffered: true });
          setTimeout(() => done(sum), 300);
        })"""
    )
    assert shift < 0.01
