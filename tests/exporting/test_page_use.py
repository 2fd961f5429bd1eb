"""The exported page as people use it: generating, settings, tokens, keyboard, languages, themes, phones, axe-core."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.data.tokenizers import CharacterTokenizer
from normscope.generate.text import generate_text
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from tests.browser import accessibility_problems
from tests.exporting.browser import open_page
from tests.exporting.test_page import tiny_model, write_page

expect = pytest.importorskip("playwright.sync_api").expect
TOKENIZER = CharacterTokenizer.of(["the quick brown fox jumps over a lazy dog"])


@pytest.fixture(scope="module")
def model() -> GPT:
    sizes = {"vocab_size": TOKENIZER.vocab_size, "context": 24, "depth": 2, "width": 16, "heads": 2}
    model = tiny_model(preset("nanochat", **sizes))
    with torch.no_grad():
        model.get_parameter("head.weight")[TOKENIZER.eos_token_id] = (
            0  # some other logit is above zero, so that greedy texts don't end
        )
    return model


@pytest.fixture(scope="module")
def path(model: GPT, tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts = {"name": "foxes", "parameters": 12_345, "loss": 1.25, "bits_per_byte": 0.75, "floor": 0.5}
    return write_page(tmp_path_factory.mktemp("page"), model, TOKENIZER, "float32", **facts)


@pytest.fixture(scope="module")
def shared_page(browser: Any, path: Path) -> Iterator[Any]:
    with open_page(browser, path, locale="en-US") as opened:
        yield opened


@pytest.fixture
def page(shared_page: Any) -> Any:
    """The page, loaded again: cheaper than a new one."""
    shared_page.evaluate("localStorage.clear()")
    shared_page.reload()
    shared_page.wait_for_selector(".status:not(:empty)")  # a small model writes a first text by itself
    return shared_page


def generate(page: Any, prompt: str, tokens: int = 12) -> list[str]:
    """Type a prompt, generate, and return the texts of the tokens."""
    page.get_by_label("Prompt", exact=True).last.fill(prompt)
    page.get_by_label("Max. new tokens").fill(str(tokens))
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".text .generated")).to_have_count(tokens)
    page.wait_for_selector(".status:not(:empty)")
    return [str(text) for text in page.locator(".text [role=option]").all_text_contents()]


def test_it_shows_the_facts_and_writes_what_python_writes(page: Any, model: GPT) -> None:
    facts = page.inner_text(".facts")
    assert all(text in facts for text in ("12,345 parameters", "validation loss 1.250", "0.750 bits per byte"))
    (expected,) = generate_text(model, TOKENIZER, "the fox", max_new_tokens=12, temperature=0.8)
    assert "".join(generate(page, "the fox")) == "the fox" + expected.text
    assert "12 tokens" in page.inner_text(".status")


@pytest.mark.exhaustive
def test_settings_change_the_text(page: Any, model: GPT) -> None:
    page.get_by_label("Top-k").fill("2")
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_label("Seed").fill(str(2**53 - 1))
    settings: dict[str, Any] = {"top_k": 2, "temperature": 1.5, "seed": 2**53 - 1}
    (expected,) = generate_text(model, TOKENIZER, "a ", max_new_tokens=12, **settings)
    assert "".join(generate(page, "a ")) == "a " + expected.text
    excluded = page.locator(".alternatives tbody tr td:last-child").all_text_contents()
    assert excluded.count("excluded") >= 6  # all but the two that top-k keeps


def test_a_token_shows_its_probability_and_what_the_model_saw(page: Any) -> None:
    page.get_by_label("Temperature").fill("0")
    generate(page, "the fox", tokens=40)  # more than the context, so the window has restarted
    option = page.locator(".text [role=option]").nth(9)
    option.click()
    assert option.get_attribute("aria-selected") == "true"
    likely = page.locator(".alternatives tr.chosen .number").first.inner_text()
    assert option.get_attribute("aria-label").endswith(likely)
    assert page.locator(".lens tbody tr").count() == 3  # the embedding and two blocks
    assert page.locator(".lens tbody tr").last.locator(".number").first.inner_text() == likely
    page.locator(".attention select").first.select_option("0")
    weights = page.locator(".strongest .number").all_text_contents()
    assert 0 < sum(float(text.strip("%<")) for text in weights) < 101
    assert "attends to" in page.inner_text(".strongest caption")


@pytest.mark.exhaustive
def test_the_keyboard_is_enough(page: Any) -> None:
    texts = generate(page, "the dog")
    page.locator(".text [aria-selected=true]").focus()
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == texts[0]
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == texts[8]
    assert page.locator(".text [aria-selected=true]").count() == 1
    page.get_by_label("Prompt", exact=True).last.fill("a fox")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".text .token-text")).to_have_text(re.compile("^a fox"))


@pytest.mark.exhaustive
def test_it_stops(page: Any) -> None:
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max. new tokens").fill("10000")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector(".status:not(:empty)")
    assert "Stopped" in page.inner_text(".status")
    assert page.locator(".text [role=option]").count() < 10_000


@pytest.mark.exhaustive
def test_a_prompt_that_cannot_be_encoded_is_refused(page: Any) -> None:
    page.get_by_label("Prompt", exact=True).last.fill("Ünknown")
    page.get_by_role("button", name="Generate").click()
    assert '"Ü" is not among the' in page.get_by_role("alert").inner_text()


def test_language_and_theme_are_remembered(page: Any) -> None:
    page.get_by_role("button", name="中文").click()
    page.get_by_label("主题").select_option("dark")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.get_by_role("button", name="生成").wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark == "rgb(13, 17, 23)"


def test_it_is_accessible_and_fits(page: Any) -> None:
    assert accessibility_problems(page) == []
    desktop = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(desktop)


@pytest.mark.exhaustive
def test_it_is_accessible_on_a_phone_in_the_dark(browser: Any, path: Path) -> None:
    settings = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}
    with open_page(browser, path, **settings) as page:
        page.wait_for_selector(".status:not(:empty)")
        assert accessibility_problems(page) == []
