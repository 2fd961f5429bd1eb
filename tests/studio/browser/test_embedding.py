"""The tab "Embedding" in a browser: text to tokens, rows and a batch; an image to patches."""

from typing import Any

import pytest

from tests.studio.browser.tabs import check_page, open_tab

expect = pytest.importorskip("playwright.sync_api").expect


@pytest.fixture
def embedding_page(studio_page: Any) -> Any:
    open_tab(studio_page, "embedding")
    studio_page.wait_for_selector(".tokens button")
    return studio_page


def test_text_becomes_a_batch_with_padding(embedding_page: Any) -> None:
    embedding_page.locator("textarea").fill("abc\nb")
    embedding_page.wait_for_selector("text=(2, 3, 6)")
    tokens = embedding_page.locator(".tokens button")
    assert tokens.count() == 6
    assert embedding_page.locator(".tokens button.padding").count() == 2
    tokens.nth(1).focus()
    assert embedding_page.locator(".tokens button.lit").count() == 2  # "b" twice: the same id, and the same row
    assert embedding_page.locator("tr", has=embedding_page.locator("td.lit")).first.inner_text().startswith("1 b")
    assert embedding_page.locator(".batch tr.padding").count() == 2
    check_page(embedding_page)


@pytest.mark.exhaustive
def test_keyboard_moves_through_the_tokens(embedding_page: Any) -> None:
    embedding_page.locator(".tokens button").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        embedding_page.keyboard.press(key)
    assert "b=1 s=2" in embedding_page.locator(".tokens button[aria-current]").text_content()


@pytest.mark.exhaustive
def test_one_feature_lights_up_in_all_sequences(embedding_page: Any) -> None:
    assert embedding_page.locator(".batch td.lit").count() == 6
    embedding_page.get_by_role("radio", name="One feature (BatchNorm)").check()
    assert embedding_page.locator(".batch td.lit").count() == 27
    assert "6 of them are padding" in embedding_page.locator(".light-note").inner_text()


@pytest.mark.exhaustive
def test_tokenizer_of_a_run(embedding_page: Any) -> None:
    embedding_page.locator("textarea").fill("the")
    embedding_page.get_by_label("Tokenizer and table").select_option("run:small")
    embedding_page.wait_for_selector("text=These are the trained weights of the run.")
    assert embedding_page.get_by_role("alert").count() == 0


@pytest.mark.exhaustive
def test_error_keeps_the_last_batch(embedding_page: Any) -> None:
    embedding_page.locator("textarea").fill("")
    embedding_page.wait_for_selector("text=there is no text")
    assert embedding_page.locator(".tokens button").count() == 27


def test_image_is_painted_and_cut_into_patches(embedding_page: Any) -> None:
    embedding_page.get_by_role("radio", name="4 × 4").check()
    embedding_page.wait_for_selector("text=(1, 4, 48)")
    assert embedding_page.locator(".sequence button").count() == 4
    row = embedding_page.locator(".vectors").last.locator("tbody tr").first
    before = row.inner_text()
    with embedding_page.expect_response("**/api/embedding/image"):
        embedding_page.locator(".pixels button").first.press("Enter")
    expect(embedding_page.locator(".pixels button").first).to_have_css("background-color", "rgb(180, 35, 44)")
    assert row.inner_text() != before
    embedding_page.get_by_role("button", name="Reset image").click()
    expect(row).to_have_text(before.replace("\t", ""))
