"""The frame of the page: tabs, language, theme, keyboard, accessibility, size on a phone."""

from typing import Any

import pytest

from tests.studio.browser.tabs import CONTENT, PHONE, check_page, open_tab


def test_every_tab_is_known(studio_page: Any) -> None:
    """Each has a test that uses it and ends with `check_page`."""
    links = studio_page.locator("nav a").all()
    assert [link.get_attribute("href").removeprefix("#") for link in links] == list(CONTENT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tab", CONTENT)
def test_tab_is_accessible_and_fits(studio_page: Any, tab: str) -> None:
    """As it opens, light and dark, on a desktop and on a phone."""
    check_page(open_tab(studio_page, tab))
    studio_page.emulate_media(color_scheme="dark")
    studio_page.set_viewport_size(PHONE)
    check_page(studio_page)


def test_language_and_theme_are_kept(studio_page: Any) -> None:
    studio_page.get_by_role("button", name="中文").click()
    assert studio_page.locator("html").get_attribute("lang") == "zh-CN"
    studio_page.locator("header select").select_option("dark")
    studio_page.reload()
    assert studio_page.locator("html").get_attribute("lang") == "zh-CN"
    background = studio_page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(13, 17, 23)"
    open_tab(studio_page, "scope")
    studio_page.wait_for_selector("text=逐步计算")
    assert "scope." not in studio_page.locator("main").inner_text().replace("normscope.", "")
    open_tab(studio_page, "embedding")
    studio_page.wait_for_selector("text=按顺序排列的图像块")
    assert "embedding." not in studio_page.locator("main").inner_text()


def test_keyboard_reaches_content_first(studio_page: Any) -> None:
    studio_page.reload()  # the focus is at the start of the page
    studio_page.wait_for_selector("main h1")
    studio_page.keyboard.press("Tab")
    studio_page.keyboard.press("Enter")
    assert studio_page.evaluate("() => document.activeElement.id") == "main"


def test_address_is_shared_without_the_token(studio_page: Any) -> None:
    assert "token" not in studio_page.url


@pytest.mark.exhaustive
def test_first_paint_and_layout(studio_page: Any) -> None:
    """Nothing moves after the first paint."""
    open_tab(studio_page, "scope")
    studio_page.reload()
    studio_page.wait_for_selector(CONTENT["scope"])
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
