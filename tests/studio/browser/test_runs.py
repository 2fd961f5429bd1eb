"""The tab Runs in a browser: a run that trains elsewhere, a lost connection, and a run started from the page."""

import os
import shutil
from typing import Any

import pytest

from normscope.runs.events import FinishedEvent, SampleEvent, StepEvent
from normscope.runs.metrics_file import MetricsFile
from normscope.storage.lock import locked
from normscope.studio.server import StudioServer
from tests.browser import accessibility_problems
from tests.studio.browser.tabs import check_page, open_tab

TEXT = "".join(f"{i} bottles of milk on the wall, {i} bottles of milk.\n" for i in range(300))


def step(number: int) -> StepEvent:
    known = {"grad_norm": 1, "lr_scale": 1, "epoch": 0, "seconds": 0.1, "tokens_per_second": 640}
    return StepEvent(number, loss=10 / number, **known, matrix_lr=0.02, lr=0.01)


def test_a_run_that_trains_elsewhere_is_live_and_survives_a_lost_connection(
    studio_page: Any, studio: StudioServer
) -> None:
    page, folder = studio_page, studio.state.runs / "elsewhere"
    shutil.copytree(studio.state.runs / "small", folder)
    with locked(folder):
        file = MetricsFile(folder / "metrics.jsonl")
        open_tab(page, "runs")
        page.get_by_role("button", name="elsewhere").click()
        page.get_by_text("4 of 8 steps").wait_for()
        file.on_event(step(5))
        file.on_event(SampleEvent(5, "10 green", " bottles"))
        page.get_by_text("5 of 8 steps").wait_for()
        page.get_by_text("10 green bottles").wait_for()
        assert page.locator("dt:text-is('Training loss') + dd").inner_text() == "2"
        page.context.set_offline(True)
        page.get_by_text("The connection to the server is lost").wait_for()
        file.on_event(step(6))
        file.on_event(SampleEvent(6, "10 green", " <b>bottles</b>"))
        page.context.set_offline(False)
        page.get_by_text("6 of 8 steps").wait_for()
        page.get_by_text("10 green <b>bottles</b>").wait_for()  # text of a run is never markup
        file.on_event(FinishedEvent(6, "stopped", seconds=3))
        file.close()
    page.locator("section:has(progress) .status.stopped").wait_for()
    drawing = page.locator(".plot [role=img]").first
    assert "Training loss: 3.296 at step 1, 1.833 at step 6" in drawing.get_attribute("aria-label")
    samples = page.locator("section:has(.sample) input[type=range]")
    assert samples.get_attribute("max") == "1"  # two: what came before the connection broke is there once


def test_the_newest_run_is_open_and_its_curves_are_toggled_by_keyboard(new_page: Any, studio: StudioServer) -> None:
    folder = studio.state.runs / "a-newer-one"
    shutil.copytree(studio.state.runs / "small", folder)
    os.utime(folder / "config.json", (4e9, 4e9))
    try:
        page = open_tab(new_page, "runs")
        page.get_by_role("heading", name="a-newer-one").wait_for()
        curve = page.get_by_role("group", name="Lines of the chart").first.get_by_role("button", name="Validation loss")
        drawing = page.locator(".plot canvas").first
        page.wait_for_load_state("networkidle")
        before = drawing.screenshot()
        curve.press("Space")
        assert curve.get_attribute("aria-pressed") == "false"
        assert drawing.screenshot() != before
        curve.press("Enter")
        assert curve.get_attribute("aria-pressed") == "true"
    finally:
        shutil.rmtree(folder)


def test_the_form_names_its_fields_in_errors(studio_page: Any) -> None:
    page = open_tab(studio_page, "runs")
    page.get_by_text("New run").click()
    page.get_by_label("Tokenizer").select_option("bytes")
    page.get_by_text("with a vocabulary of 257").wait_for()
    page.get_by_label("Depth").fill("300")
    page.get_by_role("button", name="Start training").click()
    page.get_by_role("alert").get_by_text("a smaller “Depth”").wait_for()


@pytest.mark.exhaustive
def test_runs_are_compared(studio_page: Any, studio: StudioServer) -> None:
    shutil.copytree(studio.state.runs / "small", studio.state.runs / "twin", dirs_exist_ok=True)
    open_tab(studio_page, "runs")
    studio_page.get_by_role("button", name="small").click()
    studio_page.get_by_role("checkbox", name="Compare twin").check()
    studio_page.get_by_text("twin: Validation loss").wait_for()
    studio_page.get_by_label("Metric").select_option("grad_norm")
    studio_page.get_by_text("twin: smoothed").wait_for()
    assert accessibility_problems(studio_page) == []


@pytest.mark.usefixtures("torch_kernels")
def test_a_run_is_started_on_an_uploaded_text_and_finishes(studio_page: Any, studio: StudioServer) -> None:
    page = studio_page
    open_tab(page, "runs")
    page.get_by_text("New run").click()
    text = {"name": "Milk & more.txt", "mimeType": "text/plain", "buffer": TEXT.encode()}
    page.set_input_files("input[type=file]", files=[text])
    page.locator(".preview").wait_for()
    page.locator(".start select").first.select_option("sprint")
    page.get_by_label("Depth").fill("1")
    page.get_by_label("Steps", exact=True).fill("3")
    check_page(page)
    page.get_by_role("button", name="Start training").click()
    page.get_by_text("3 of 3 steps").wait_for()
    page.locator("section:has(progress) .status.done").wait_for()
    page.get_by_role("heading", name="Samples").wait_for()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Report").click()
    assert opened.value.locator("h1").inner_text() == "Milk-more"
    assert (studio.state.runs / "Milk-more").is_dir()
