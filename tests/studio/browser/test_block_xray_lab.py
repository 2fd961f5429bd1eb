"""The tabs Block, X-ray and Lab, as people use them."""

from typing import Any

import pytest

from normscope.lab.catalog import all_claims
from tests.browser import accessibility_problems
from tests.studio.browser.tabs import PHONE, check_page, open_tab

expect = pytest.importorskip("playwright.sync_api").expect


def test_parts_of_a_block(studio_page: Any) -> None:
    page = open_tab(studio_page, "block")
    page.locator('.diagram [data-module="mlp.up"]').click()
    expect(page.locator(".part-name")).to_contain_text("mlp.up")
    expect(page.locator("pre.formula")).to_contain_text("y = x @ weight.T")
    page.get_by_role("combobox", name="Wiring").select_option("sandwich")
    expect(page.get_by_role("status").filter(has_text="norms.2, norms.3")).to_be_visible()
    page.get_by_role("combobox", name="Model").select_option("run:small")
    expect(page.get_by_role("combobox", name="Wiring")).to_be_disabled()
    expect(page.locator(".part-name")).to_contain_text("mlp.up")
    check_page(page)


def test_a_phone_shows_the_part_that_was_chosen_and_leads_back(studio_page: Any) -> None:
    page = open_tab(studio_page, "block")
    page.set_viewport_size(PHONE)
    box = page.locator('.diagram [data-module="mlp.up"]')
    box.click()
    expect(page.locator(".part-name")).to_contain_text("mlp.up")
    expect(page.locator(".part-name")).to_be_in_viewport()
    page.get_by_role("link", name="Back to the drawing").click()
    expect(box).to_be_in_viewport()


def test_an_xray_is_taken(studio_page: Any) -> None:
    page = open_tab(studio_page, "xray")
    page.get_by_role("button", name="Take an x-ray").click()
    expect(page.get_by_role("heading", name="Findings")).to_be_visible()
    check_page(page)
    page.set_viewport_size(PHONE)
    table = page.locator(".modules")
    assert table.evaluate("(one) => one.scrollWidth - one.clientWidth") == 0  # no column is cut
    page.get_by_role("button", name="Take an x-ray").click()
    expect(page.get_by_label("Shown")).to_have_value(
        page.get_by_label("Shown").locator("option").last.get_attribute("value")
    )
    expect(page.get_by_label("Shown")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Take an x-ray")).not_to_be_in_viewport()


@pytest.mark.exhaustive
def test_xrays_are_taken_uploaded_and_compared(studio_page: Any, tmp_path: Any) -> None:
    page = open_tab(studio_page, "xray")
    page.get_by_role("button", name="Take an x-ray").click()
    expect(page.get_by_role("heading", name="Findings")).to_be_visible()
    (tmp_path / "wrong.json").write_text("{}")
    page.get_by_label("Open a saved x-ray").set_input_files(tmp_path / "wrong.json")
    expect(page.get_by_role("alert")).to_contain_text("not an x-ray")
    page.get_by_label("Model").select_option("llama")
    page.get_by_role("button", name="Take an x-ray").click()
    page.get_by_label("Compare with").select_option(index=1)
    expect(page.get_by_role("heading", name="llama compared with small")).to_be_visible()
    assert accessibility_problems(page) == []
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Full report").click()
    assert "X-ray of" in popup.value.title()


def test_a_claim_is_opened(studio_page: Any) -> None:
    page = open_tab(studio_page, "lab")
    claim = next(iter(all_claims()))
    page.get_by_role("button", name=claim.statement).click()
    expect(page.locator(".claim")).to_contain_text("not run")
    expect(page.locator(".claim h2")).to_have_text(claim.statement)
    check_page(page)


def test_a_phone_shows_the_list_of_claims_or_one_of_them(studio_page: Any) -> None:
    page = open_tab(studio_page, "lab")
    page.set_viewport_size(PHONE)
    claim = list(all_claims())[-1]
    button = page.get_by_role("button", name=claim.statement)
    button.click()
    heading = page.locator(".claim h2")
    expect(heading).to_have_text(claim.statement)
    expect(heading).to_be_in_viewport(ratio=1)
    expect(button).to_be_hidden()
    page.get_by_role("link", name="All claims").click()
    expect(heading).to_have_count(0)
    expect(button).to_be_in_viewport(ratio=1)
    expect(button).to_be_focused()


@pytest.mark.exhaustive
def test_a_claim_is_run_and_watched(studio_page: Any) -> None:
    page = open_tab(studio_page, "lab")
    page.locator(".claims button").first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("log")).to_be_visible()
    expect(page.locator(".claim .verdict").first).to_contain_text("parts hold", timeout=300_000)
    expect(page.locator(".claim-chart").first).to_be_visible()
