"""Text generation: pieces, stop strings over several tokens, characters over several bytes, prompts."""

import codecs
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError, TokenError
from normscope.generate.config import GenerationConfig
from normscope.generate.text import GeneratedText, generate_text
from normscope.models.gpt import GPT
from tests.data.tokenizers.examples import like_llama
from tests.generate.writers import BYTES, LETTERS, always, every_preset, slow_continuation, writer
from tests.support import every_refusal


def streamed(
    model: GPT, tokenizer: Any, prompts: str | Sequence[str], **options: Any
) -> tuple[list[GeneratedText], list[str]]:
    """The texts, and the pieces of each joined."""
    pieces: dict[int, str] = {}

    def listen(text: int, piece: str) -> None:
        assert piece
        pieces[text] = pieces.get(text, "") + piece

    found = generate_text(model, tokenizer, prompts, stream=listen, **options)
    return found, [pieces.get(i, "") for i in range(len(found))]


@every_preset
def test_text_and_pieces_match_the_tokens(name: str) -> None:
    model = writer(name, depth=1)
    found, pieces = streamed(model, LETTERS, ["hello", "a b"], samples=2, max_new_tokens=30, seed=3)
    assert [text.prompt for text in found] == ["hello", "hello", "a b", "a b"]
    for i, text in enumerate(found):
        assert text.text == pieces[i] == LETTERS.decode(text.tokens)
        wanted = slow_continuation(
            model.eval(), LETTERS.encode(text.prompt).tolist(), 30, GenerationConfig(), seed=3, sample=i % 2
        )
        ended = LETTERS.eos_token_id in wanted
        assert text.finish_reason == ("stop_token" if ended else "length")
        assert text.tokens == (wanted[: wanted.index(LETTERS.eos_token_id)] if ended else wanted)


def bytes_writer() -> GPT:
    """A model that writes any bytes: some of them characters, most of them halves."""
    return writer("llama", vocab_size=300, depth=1)


def test_only_complete_characters_are_emitted() -> None:
    found, pieces = streamed(bytes_writer(), BYTES, ["", "é"], samples=3, max_new_tokens=60)
    for text, joined in zip(found, pieces, strict=True):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        assert text.text == joined == decoder.decode(bytes(text.tokens), final=text.finish_reason != "length")
    assert any("\N{REPLACEMENT CHARACTER}" in text.text for text in found)
    assert max(token for text in found for token in text.tokens) < BYTES.vocab_size  # of the model's 300


def parrot(text: bytes) -> GPT:
    """A model that can do nothing but write these bytes, none of which is there twice: each says which comes next."""
    model = writer("llama", vocab_size=260, width=260, depth=1)
    head = model.head
    assert head is not None
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(260))
        for silent in (model.blocks[0].attention.out, model.blocks[0].mlp.down, head):  # type: ignore[union-attr]
            silent.weight.zero_()  # type: ignore[union-attr, operator]
        for parameter in model.final_norm.parameters():
            parameter.fill_(1.0)
        for one, other in zip((BYTES.eos_token_id, *text[:-1]), text, strict=True):
            head.weight[other, one] = 1.0
    return model


def test_a_character_is_emitted_with_its_last_byte() -> None:
    text, heard = "ab€𝄞é".encode(), list[str]()
    (found,) = generate_text(
        parrot(text), BYTES, "", max_new_tokens=len(text), temperature=0.0, stream=lambda _, piece: heard.append(piece)
    )
    assert found.tokens == list(text)
    assert heard == ["a", "b", "€", "𝄞", "é"]


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_an_incomplete_character_at_max_new_tokens_is_dropped(missing: int) -> None:
    text = "a𝄞".encode()[:-missing]
    (found,), (pieces,) = streamed(parrot(text), BYTES, "", max_new_tokens=len(text), temperature=0.0)
    assert found.text == pieces == "a"
    assert found.tokens == list(text)
    assert found.finish_reason == "length"


def test_an_invalid_character_becomes_a_replacement_character() -> None:
    """What comes after it, a letter or the end of the text, says that its rest will not come."""
    half = "€".encode()[:-1]
    (found,) = generate_text(parrot(half + b"a"), BYTES, "", max_new_tokens=3, temperature=0.0)
    assert found.text == "\N{REPLACEMENT CHARACTER}a"
    model = parrot(half)
    with torch.no_grad():
        model.head.weight[BYTES.eos_token_id, half[-1]] = 1.0  # type: ignore[union-attr]
    (found,) = generate_text(model, BYTES, "", max_new_tokens=9, temperature=0.0)
    assert (found.text, found.finish_reason) == ("\N{REPLACEMENT CHARACTER}", "stop_token")


def test_special_tokens_in_a_prompt_need_allow_special() -> None:
    prompt, model = "a<|endoftext|>", bytes_writer()
    plain, special, ended = (
        generate_text(model, BYTES, text, max_new_tokens=8, allow_special=is_allowed)[0]
        for text, is_allowed in ((prompt, False), (prompt, True), ("a<|end|>", True))
    )
    assert plain.tokens != special.tokens == ended.tokens
    assert special.prompt == prompt


MODEL = writer(depth=1)


@cache
def without_stops(seed: int) -> list[GeneratedText]:
    return generate_text(MODEL, LETTERS, "hello", max_new_tokens=40, seed=seed)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(stops=st.lists(st.text("abcdefgh ", min_size=1, max_size=2), min_size=1, max_size=3), seed=st.integers(0, 3))
def test_a_stop_string_ends_the_text_before_it(stops: list[str], seed: int) -> None:
    (free,) = without_stops(seed)
    (text,), (pieces,) = streamed(MODEL, LETTERS, "hello", max_new_tokens=40, seed=seed, stop=stops)
    assert text.text == pieces
    assert free.tokens[: len(text.tokens)] == text.tokens
    assert not any(stop in text.text for stop in stops)
    if text.finish_reason == "stop":
        assert any(LETTERS.decode(text.tokens) == text.text + stop for stop in stops)
    else:
        assert text == free


def test_a_stop_string_over_several_tokens() -> None:
    (free,) = generate_text(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9)
    assert len(free.text) == 20
    stop = free.text[7:11]
    at = free.text.index(stop)
    (text,), (pieces,) = streamed(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9, stop=stop)
    assert text.text == pieces == free.text[:at]
    assert text.finish_reason == "stop"
    assert len(text.tokens) == at + 4


def test_held_back_text_is_emitted_at_the_end() -> None:
    (free,) = generate_text(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9)
    (text,), (pieces,) = streamed(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9, stop=[free.text[15:] + "zz"])
    assert text.text == pieces == free.text
    assert text.finish_reason == "length"


def test_a_stop_string_in_the_last_token_sets_the_finish_reason() -> None:
    (free,) = generate_text(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9)
    last = free.text[-3:]
    assert free.text.count(last) == 1
    (text,) = generate_text(MODEL, LETTERS, "hello", max_new_tokens=20, seed=9, stop=last)
    assert (text.text, text.finish_reason) == (free.text[:-3], "stop")


def test_an_empty_prompt_starts_a_document() -> None:
    (text,) = generate_text(MODEL, LETTERS, "", max_new_tokens=10, temperature=0.0)
    wanted = slow_continuation(MODEL.eval(), [LETTERS.eos_token_id], 10, GenerationConfig(temperature=0))
    assert text.prompt == ""
    assert text.tokens == wanted[: len(text.tokens)]


def test_an_empty_prompt_does_not_penalize_the_stop_token() -> None:
    """The end that stands before an empty prompt is no part of the text, so it is not there already."""
    model = always(LETTERS.vocab_size, LETTERS.eos_token_id, or_else=0)
    for penalty in (1.0, 4.0):
        (text,) = generate_text(model, LETTERS, "", max_new_tokens=3, temperature=0.0, repetition_penalty=penalty)
        assert (text.text, text.finish_reason) == ("", "stop_token")


def test_a_space_after_the_prompt_is_kept() -> None:
    """Llama's tokens carry the space before a word, and the library drops it where a text begins."""
    tokenizer = HuggingFaceTokenizer(like_llama())
    model = writer("llama", vocab_size=tokenizer.vocab_size, depth=1)
    for prompt in ("the", "cat", "the 猫", "a "):
        found, pieces = streamed(model, tokenizer, prompt, samples=4, max_new_tokens=12)
        for text, joined in zip(found, pieces, strict=True):
            whole = tokenizer.decode([*tokenizer.encode(prompt), *text.tokens])
            assert text.text == joined
            mark = "\N{REPLACEMENT CHARACTER}"  # which is left out where the text was cut off
            assert joined.rstrip(mark) == whole[len(prompt) :].rstrip(mark)
    model = always(tokenizer.vocab_size, tokenizer.encode("the").item())
    (text,) = generate_text(model, tokenizer, "cat", max_new_tokens=2, temperature=0.0)
    assert text.text == " the the"


def test_notices_of_long_prompts_and_texts() -> None:
    short, long = generate_text(MODEL, LETTERS, ["a", "abc " * 10], max_new_tokens=3)
    assert short.notices == ()
    assert long.notices[0] == "prompt truncated to its last 16 of 40 tokens: the context of the model is 16 tokens"


def test_settings_reach_the_sampling() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 0.9},
        {"repetition_penalty": 3.0},
        {"seed": 9},
    ]
    model = writer()
    found = [generate_text(model, LETTERS, "hello", max_new_tokens=25, **option)[0].text for option in options]
    assert len(set(found)) == len(found)


def test_no_prompts() -> None:
    assert generate_text(MODEL, LETTERS, []) == []


def ask(prompts: Any = "hello", model: Any = None, tokenizer: Any = LETTERS, **options: Any) -> Any:
    return lambda: generate_text(model or MODEL, tokenizer, prompts, **{"max_new_tokens": 2, **options})


@every_refusal(
    ("model", ConfigError, "must be a GPT, but got Linear", ask(model=torch.nn.Linear(2, 2))),
    (
        "tokenizer",
        ArgumentTypeError,
        "must be a Tokenizer, but got str\nfix: tokenizer = load_tokenizer",
        ask(tokenizer="bytes"),
    ),
    ("other", ConfigError, "the tokenizer has 257 tokens, but the model has vocab_size=29\nfix:", ask(tokenizer=BYTES)),
    ("tokens", ArgumentTypeError, "a prompt must be a str, but got list\nfix: use generate_tokens", ask([[1, 2]])),
    ("letter", TokenError, "is not in the tokenizer's alphabet", ask("é")),
    ("stop", ConfigError, "a stop string is empty", ask(stop=("",))),
    ("temperature", ConfigError, "temperature=-1 must be", ask(temperature=-1)),
    ("samples", ConfigError, "samples=0 must be", ask(samples=0)),
    ("length", ConfigError, "max_new_tokens=-1 must be", ask(max_new_tokens=-1)),
    ("seed", ConfigError, "seed=0.5 must be", lambda: GenerationConfig(seed=0.5)),  # type: ignore[arg-type]
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
