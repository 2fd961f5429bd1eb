"""The connection is lost while a part of the page loads: it loads when the connection is back."""

from typing import Any

import pytest

from tests.studio.browser.tabs import open_tab

expect = pytest.importorskip("playwright.sync_api").expect
LOST = "The connection to the server is lost"


def test_a_tab_opened_without_a_connection_loads_when_it_is_back(new_page: Any) -> None:
    new_page.context.set_offline(True)
    new_page.click('nav a[href="#lab"]')
    new_page.get_by_text(LOST).wait_for()
    new_page.context.set_offline(False)
    new_page.get_by_role("heading", name="Lab", level=1).wait_for()
    new_page.get_by_text(LOST).wait_for(state="hidden")


def test_the_block_of_cells_loads_when_the_connection_is_back(new_page: Any) -> None:
    """Until then the tables are there, as without WebGL."""
    new_page.route("**/assets/cube-scene-*.js", lambda route: route.abort(), times=3)
    new_page.click('nav a[href="#scope"]')
    expect(new_page.locator(".error")).to_contain_text("cube-scene")  # also failed the second time
    expect(new_page.get_by_role("group", name="All cells").locator("button.lit")).to_have_count(18)
    new_page.click('nav a[href="#xray"]')
    open_tab(new_page, "scope")  # fails once more, then loads by itself
    expect(new_page.locator(".error")).to_have_count(0)
    expect(new_page.get_by_text(LOST)).to_be_hidden()


def test_what_the_user_asked_for_without_a_connection_can_be_tried_again(studio_page: Any) -> None:
    take = open_tab(studio_page, "xray").get_by_role("button", name="Take an x-ray")
    expect(take).to_be_enabled()
    studio_page.context.set_offline(True)
    take.click()
    expect(studio_page.get_by_role("alert")).to_contain_text("The server did not answer.")
    studio_page.context.set_offline(False)
    studio_page.get_by_role("button", name="Try again").click()
    expect(studio_page.get_by_role("heading", name="Findings")).to_be_visible()
    expect(studio_page.get_by_role("alert")).to_have_count(0)


def test_the_form_for_a_new_run_fills_when_the_connection_is_back(studio_page: Any) -> None:
    studio_page.route("**/api/runs/options", lambda route: route.abort(), times=1)
    open_tab(studio_page, "runs")
    studio_page.get_by_text("New run").click()
    expect(studio_page.locator(".start select").first.locator("option")).to_have_count(2)
    expect(studio_page.get_by_role("button", name="Start training")).to_be_enabled()
