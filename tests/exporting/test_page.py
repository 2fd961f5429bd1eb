"""The exported page in a real browser: the same tokens as Python, for every architecture, and nothing but itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import normscope
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.data.tokenizers.huggingface import train_bpe
from normscope.exporting.html import fill_template, read_template
from normscope.generate.text import generate_text
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset
from normscope.runs.read_source import load
from tests.exporting.browser import open_page
from tests.exporting.comparison import compare, make_prompts, run_prompts
from tests.exporting.golden import TEXTS
from tests.support import scramble

SMALL = {"vocab_size": 257, "context": 24, "depth": 2, "width": 32, "heads": 4}
FACTS = {"name": "tiny", "parameters": 1, "step": 1, "steps": 1, "loss": None, "bits_per_byte": None, "floor": None}

CONFIGS: dict[str, GPTConfig] = {
    "gpt2": preset("gpt2", **SMALL),
    "llama": preset("llama", **SMALL),
    "nanochat": preset("nanochat", **SMALL),
    "post, window": preset("llama", **SMALL, wiring="post", window=5, activation="geglu"),
    "sandwich, tied": preset("llama", **SMALL, wiring="sandwich", tied_head=True, activation="reglu"),
    "parallel, no positions": preset("gpt2", **SMALL, wiring="parallel", positions="none", activation="gelu-tanh"),
    "single, groups": preset("gpt2", **SMALL, wiring="single", norm="group", activation="silu"),
    "no residuals": preset("nanochat", **SMALL, wiring="none", norm="layer", activation="relu"),
    "no norms": preset("llama", **SMALL, norm=None, window=3),
    "multi-query, odd sizes": preset("gpt2", **{**SMALL, "width": 30, "heads": 3}, kv_heads=1, head_dim=6, hidden=17),
    "QK-norm over all heads": preset("llama", **SMALL, kv_heads=4, qk_norm=NormSpec("b s [h e]", affine="e")),
}


def write_page(folder: Path, model: GPT, tokenizer: Tokenizer, weights: str = "int8", **facts: Any) -> Path:
    path = folder / "page.html"
    content = {"facts": {**FACTS, **facts}, "prompt": ""}
    path.write_bytes(fill_template(read_template(), model, tokenizer, weights, content))
    return path


def tiny_model(config: GPTConfig) -> GPT:
    model = GPT(config)
    scramble(model)
    return model


BY_DEFAULT = ("gpt2", "nanochat")


@pytest.mark.parametrize(
    "name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.exhaustive) for name in CONFIGS]
)
def test_every_architecture_gives_the_tokens_of_python(name: str, browser: Any, tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    path = write_page(tmp_path, tiny_model(CONFIGS[name]), tokenizer, "float32" if "sandwich" in name else "int8")
    model, tokenizer_read = load(path)
    assert tokenizer_read.kind == "bytes"
    prompts = make_prompts(list(" ".join(TEXTS).encode()), 12, 30)  # some are longer than the context
    with open_page(browser, path) as page:
        for tokens in prompts[:3]:
            window = tokens[-model.config.context :]
            with torch.inference_mode():
                expected = model(torch.tensor([window]))[0, -1]
            found = torch.tensor(page.evaluate("tokens => normscope.logits(tokens)", tokens))
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * max(1.0, float(expected.abs().max())))
        greedy = {"max_new_tokens": 20, "temperature": 0.0}
        assert compare(page, model, tokenizer, prompts, **greedy) == []
        penalized = {"max_new_tokens": 20, "temperature": 0.9, "seed": 3, "repetition_penalty": 1.3, "top_p": 0.9}
        sampled = compare(page, model, tokenizer, prompts, **penalized)
        assert all(one.is_at_boundary for one in sampled)


@pytest.fixture(scope="module")
def bpe_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, GPT, Tokenizer]]:
    tokenizer = train_bpe(TEXTS * 2, vocab_size=350)
    model = tiny_model(preset("nanochat", **{**SMALL, "vocab_size": tokenizer.vocab_size, "context": 64}))
    path = write_page(tmp_path_factory.mktemp("bpe"), model, tokenizer)
    with open_page(browser, path) as page:
        yield page, *load(path)


def test_texts_are_encoded_generated_and_decoded_as_in_python(bpe_page: tuple[Any, GPT, Tokenizer]) -> None:
    page, model, tokenizer = bpe_page
    for i, text in enumerate(TEXTS):
        assert page.evaluate("text => normscope.encode(text)", text) == tokenizer.encode(text).tolist()
        settings: dict[str, Any] = {
            "max_new_tokens": 9,
            "temperature": 1.5,
            "seed": 2**64 - 1 - i,
            "min_p": 0.01,
            "top_k": 300,
        }
        (ours,) = generate_text(model, tokenizer, text, **settings)
        theirs = page.evaluate(
            "([prompt, settings]) => normscope.generate({prompt, ...settings})",
            [text, {**settings, "seed": str(settings["seed"])}],
        )
        assert theirs == {"text": ours.text, "tokens": ours.tokens, "finish_reason": ours.finish_reason}


def test_the_page_can_neither_connect_nor_run_other_code(bpe_page: tuple[Any, GPT, Tokenizer]) -> None:
    page, _, _ = bpe_page
    policy = page.evaluate("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_a_hostile_name_is_only_text(browser: Any, tmp_path: Path) -> None:
    name = "</title></script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>@@model@@ $& <!--"
    path = write_page(tmp_path, tiny_model(preset("nanochat", **SMALL)), ByteTokenizer(), name=name)
    assert load(path)[0].config == preset("nanochat", **SMALL)
    with open_page(browser, path) as page:
        assert page.title() == f"{name} · normscope"
        assert page.inner_text("h1") == " ".join(name.split())
        assert page.evaluate("typeof window.hacked") == "undefined"


@pytest.fixture(scope="module")
def default_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path, Path]]:
    """The page of the default model on the built-in stories, its file, and its run."""
    folder = tmp_path_factory.mktemp("default")
    run = normscope.train(steps=150, out=folder / "run", quiet=True)
    path = normscope.export(run, out=folder / "stories.html").path
    with open_page(browser, path) as page:
        yield page, path, run.folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "sampled"])
def test_a_thousand_prompts_give_the_same_tokens(
    default_page: tuple[Any, Path, Path], settings: dict[str, Any], quarter: int
) -> None:
    page, path, run = default_page
    assert path.stat().st_size < 3_000_000
    prompts = run_prompts(run, 1000)[250 * quarter : 250 * (quarter + 1)]
    different = compare(page, *load(path), prompts, max_new_tokens=32, **settings)
    for one in different:
        print(one)
    assert all(settings["temperature"] and one.is_at_boundary for one in different)
