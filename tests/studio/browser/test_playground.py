"""The playground in a browser: tokens stream in, each can be looked into, and two models write side by side."""

from typing import Any

import pytest

from tests.studio.browser.tabs import check_page, open_tab


def generate(page: Any, prompt: str) -> None:
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_label("Max. new tokens").fill("12")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Generate").and_(page.locator(":enabled")).wait_for()


def test_tokens_their_alternatives_the_lens_and_attention(studio_page: Any) -> None:
    page = studio_page
    open_tab(page, "playground")
    generate(page, "10 green")
    text = page.locator(".text [role=option]")
    assert text.count() > 9
    text.nth(8).click()
    page.keyboard.press("ArrowRight")
    assert text.nth(9).get_attribute("aria-selected") == "true"
    rows = page.locator(".alternatives tbody tr")
    assert rows.count() >= 8
    assert page.locator(".alternatives tr.chosen").count() == 1
    text.nth(2).hover()
    page.get_by_text("The model did not predict this token").wait_for()
    page.locator(".lens tbody tr").nth(2).wait_for()  # the embedding and two blocks
    page.get_by_role("radio", name="head 2").check()
    page.get_by_text("attends to").wait_for()
    check_page(page)


@pytest.mark.exhaustive
def test_two_models_side_by_side(studio_page: Any) -> None:
    page = studio_page
    open_tab(page, "playground")
    page.get_by_role("checkbox", name="Two models side by side").check()
    generate(page, "10")
    first, second = page.locator(".model-panel").all()
    for panel in (first, second):
        assert panel.locator(".text [role=option]").count() > 2


@pytest.mark.exhaustive
def test_an_error_is_shown(studio_page: Any) -> None:
    open_tab(studio_page, "playground")
    studio_page.locator("textarea").fill("水")  # not in the vocabulary of a character model
    studio_page.get_by_role("button", name="Generate").click()
    studio_page.locator(".error").first.wait_for()
