"""The frame of the page: tabs, language, theme, keyboard, accessibility, size on a phone."""

from typing import Any

import pytest

from tests.studio.browser.tabs import CONTENT, PHONE, TOO_WIDE, check_page, open_tab
from tests.studio.page_load import measure


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


def test_every_tab_fits_a_phone_and_does_not_move_while_it_loads(studio_page: Any) -> None:
    studio_page.set_viewport_size(PHONE)
    address = studio_page.url.partition("#")[0]
    for tab in CONTENT:
        studio_page.goto(f"{address}?{tab}#{tab}")  # another address, so that the page is loaded again
        assert measure(studio_page, tab).shift < 0.02, tab
        assert studio_page.evaluate(TOO_WIDE) == 0, tab
        link = studio_page.locator("nav a[aria-current]").bounding_box()
        assert link["x"] >= 0, tab
        assert link["x"] + link["width"] <= PHONE["width"], tab


@pytest.mark.exhaustive
def test_nothing_moves_on_a_desktop(studio_page: Any) -> None:
    for tab in CONTENT:
        open_tab(studio_page, tab)
        studio_page.reload()
        assert measure(studio_page, tab).shift < 0.02, tab
