"""The tab "Scope" in a browser: norms, typed scopes, edits, groups, padding, the block of cells and its tables."""

from typing import Any

import pytest

from tests.browser import accessibility_problems
from tests.studio.browser.tabs import check_page, open_tab

expect = pytest.importorskip("playwright.sync_api").expect


@pytest.fixture
def scope_page(studio_page: Any) -> Any:
    return open_tab(studio_page, "scope")


def cells(page: Any) -> Any:
    return page.get_by_role("group", name="All cells")


def lit(page: Any) -> int:
    """The number of cells of the tensor that are lit up."""
    count: int = cells(page).locator("button.lit").count()
    return count


def choose(page: Any, name: str) -> None:
    with page.expect_response("**/api/scope/work"):
        page.get_by_role("radio", name=name, exact=True).check()


def step(page: Any, name: str) -> str:
    """The number of a step in the table of the chosen cell."""
    text: str = page.locator(".steps-table tr", has_text=name).locator("td").first.inner_text()
    return text


def test_norm_lights_up_the_cells_that_share_its_statistics(scope_page: Any) -> None:
    assert lit(scope_page) == 18  # BatchNorm: one channel of both images
    sizes = {"LayerNorm": 36, "InstanceNorm": 9, "GroupNorm": 18, "RMSNorm": 36, "PowerNorm": 18, "BatchNorm": 18}
    for norm, count in sizes.items():
        choose(scope_page, norm)
        scope_page.wait_for_selector(f".codes dd:has-text('{norm}(')")
        assert lit(scope_page) == count
        assert scope_page.get_by_text("over all values, in float64").is_visible()
    check_page(scope_page)


@pytest.mark.exhaustive
def test_error_appears_under_the_character(scope_page: Any) -> None:
    field = scope_page.get_by_label("Scope: type your own")
    field.fill("n [c h x) w")
    scope_page.wait_for_selector(".carets .caret")
    assert scope_page.locator(".carets .caret").count() == 1
    caret = scope_page.locator(".carets .caret").bounding_box()
    box, width = field.bounding_box(), scope_page.locator(".carets .unseen").first.bounding_box()["width"]
    assert caret["y"] > box["y"] + box["height"] - 2
    assert caret["x"] == pytest.approx(box["x"] + 11 + width, abs=1.5)  # border and padding of the input
    assert width == pytest.approx(8 * caret["width"], rel=0.02)
    assert "unmatched ')'" in scope_page.locator("#scope-error").inner_text()
    assert accessibility_problems(scope_page) == []
    field.fill("n [c] h w")
    scope_page.wait_for_selector(".carets .caret", state="detached")
    assert lit(scope_page) == 4


@pytest.mark.exhaustive
def test_edit_changes_the_steps(scope_page: Any) -> None:
    mean = step(scope_page, "Mean")
    with scope_page.expect_response("**/api/scope/work"):
        scope_page.get_by_label("Input", exact=True).and_(scope_page.locator("input[type=number]")).fill("7")
    with scope_page.expect_response("**/api/scope/work"):
        scope_page.get_by_label("Weight").fill("2")
    expect(scope_page.locator(".steps-table tr", has_text="Mean")).not_to_contain_text(mean)
    expect(scope_page.locator(".steps-table tr", has_text="Output")).to_contain_text("2 ×")
    normalized, output = (float(step(scope_page, name)) for name in ("Normalized", "Output"))
    assert output == pytest.approx(2 * normalized, abs=2e-4)
    assert cells(scope_page).locator("button").first.inner_text() == "7"


@pytest.mark.exhaustive
def test_groups_slide_from_instance_norm_to_layer_norm(scope_page: Any) -> None:
    choose(scope_page, "GroupNorm")
    slider = scope_page.get_by_role("slider")
    for key, count, name in (("Home", 9, "InstanceNorm"), ("End", 36, "LayerNorm")):
        with scope_page.expect_response("**/api/scope/work"):
            slider.press(key)
        expect(cells(scope_page).locator("button.lit")).to_have_count(count)
        assert name in slider.get_attribute("aria-valuetext")


def test_mask_puts_padding_right(scope_page: Any) -> None:
    choose(scope_page, "Text (B, S, D)")
    scope_page.get_by_label("Shorter samples, padded").check()
    scope_page.wait_for_selector("text=4 of 4 statistics of real values are wrong")
    scope_page.wait_for_selector("text=turn the mask on")
    scope_page.get_by_label("Mask the padding").check()
    scope_page.wait_for_selector("text=The mask corrects them")
    scope_page.wait_for_selector("text=torch's layer has no mask")
    choose(scope_page, "LayerNorm")
    scope_page.wait_for_selector("text=never mixes real values with padding")


@pytest.mark.exhaustive
def test_keyboard_moves_through_the_cells(scope_page: Any) -> None:
    cells(scope_page).locator("button").first.focus()
    for key in ("ArrowRight", "ArrowDown", "PageDown"):
        scope_page.keyboard.press(key)
    assert "x[n=0 c=1 h=1 w=1]" in scope_page.locator(".cell-name").inner_text()
    assert cells(scope_page).locator("button[aria-current]").count() == 1


def test_block_is_drawn_and_turns(scope_page: Any) -> None:
    labels = scope_page.locator(".cube-labels span")
    assert labels.all_inner_texts() == ["w →", "h ↓", "c ↗", "n=0", "n=1"]
    before, place = scope_page.locator(".cube").screenshot(), labels.first.get_attribute("style")
    scope_page.get_by_role("group", name="Cells of the tensor").press("ArrowLeft")
    assert labels.first.get_attribute("style") != place
    assert scope_page.locator(".cube").screenshot() != before
    scope_page.get_by_role("button", name="Reset view").click()
    assert labels.first.get_attribute("style") == place


@pytest.mark.exhaustive
def test_click_on_the_block_chooses_a_cell(scope_page: Any) -> None:
    box = scope_page.locator(".cube").bounding_box()
    found = set()
    for x in (0.3, 0.4, 0.6, 0.7):
        scope_page.mouse.click(box["x"] + x * box["width"], box["y"] + box["height"] / 2)
        found.add(scope_page.locator(".cell-name").inner_text())
    assert len(found) > 1


@pytest.mark.exhaustive
def test_without_webgl_the_tables_remain(new_page: Any) -> None:
    new_page.evaluate("() => { HTMLCanvasElement.prototype.getContext = () => null }")
    new_page.click('nav a[href="#scope"]')
    new_page.wait_for_selector("text=This browser has no WebGL")
    assert lit(new_page) == 18


@pytest.mark.exhaustive
def test_the_same_value_is_found_in_both_layouts(scope_page: Any) -> None:
    images, text = (scope_page.get_by_role("group", name=name) for name in ("Images (N", "Text (B"))
    images.locator("button").nth(5).click()
    assert images.locator("button[aria-current]").inner_text() == text.locator("button[aria-current]").inner_text()
    assert text.locator("button[aria-current]").get_attribute("aria-label").startswith("b=0 s=1 d=1")
