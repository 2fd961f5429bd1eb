"""The playground's endpoints: streamed tokens with probabilities, attention, the lens, and requests that go too far."""

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from normscope import generate_tokens
from normscope.data.tokenizers import ByteTokenizer
from normscope.errors import ConfigError, TokenError
from normscope.studio.endpoints import NoArguments
from normscope.studio.state import StudioState
from normscope.studio.views import playground
from normscope.studio.views.playground import AttentionRequest, GenerateRequest, LogitLensRequest


def generated(studio: StudioState, **settings: Any) -> list[Any]:
    return list(playground.generate(studio, GenerateRequest("small", **settings)))


def test_models_and_settings(studio: StudioState) -> None:
    found = playground.models(studio, NoArguments())
    (model,) = found["models"]
    assert (model["name"], model["steps"], model["depth"], model["context"]) == ("small", [4], 2, 16)
    assert found["defaults"]["temperature"] == 0.8


def test_the_tokens_are_those_of_generate_tokens(studio: StudioState) -> None:
    settings: dict[str, Any] = {
        "max_new_tokens": 20,
        "temperature": 0.9,
        "top_k": 5,
        "repetition_penalty": 1.3,
        "seed": 3,
    }
    first, *tokens, last = generated(studio, prompt="10 green ", **settings)
    model, tokenizer = studio.load("small")
    (wanted,) = generate_tokens(
        model,
        [tokenizer.encode("10 green ")],
        stop_tokens=[tokenizer.eos_token_id],
        vocabulary=tokenizer.vocab_size,
        **settings,
    )
    assert "".join(token["text"] for token in first["prompt"]) == "10 green "
    assert [token["id"] for token in tokens if token["id"] != tokenizer.eos_token_id] == wanted.tokens
    assert (last["finish_reason"], tuple(last["notices"])) == (wanted.finish_reason, wanted.notices)
    for token in tokens:
        listed = {one["id"]: one for one in token["alternatives"]}
        assert listed[token["id"]]["probability"] == token["probability"]
        assert 0 < token["sampled"] <= 1
        assert sum(one["sampled"] > 0 for one in listed.values()) <= 5
    # The window of the model restarts when it outgrows the context of 16: 9 + 7 tokens fit.
    assert [token["start"] for token in tokens][:8] == [0] * 8
    assert tokens[8]["start"] > 0


def test_the_lens_ends_with_the_probabilities_of_the_sampled_token(studio: StudioState) -> None:
    first, token, _ = generated(studio, prompt="10 green ", max_new_tokens=1)
    ids = [one["id"] for one in first["prompt"]]
    rows = playground.lens(studio, LogitLensRequest("small", tokens=ids, chosen=token["id"]))["rows"]
    assert [row["blocks"] for row in rows] == [0, 1, 2]
    assert rows[-1]["chosen"] == pytest.approx(token["probability"], rel=1e-4)
    assert [one["id"] for one in rows[-1]["top"]] == [one["id"] for one in token["alternatives"]][:8]
    assert rows[0]["chosen"] != rows[-1]["chosen"]


def test_attention_of_a_block(studio: StudioState) -> None:
    ids = studio.load("small")[1].encode("10 green ").tolist()
    weights = playground.attention(studio, AttentionRequest("small", tokens=ids, layer=1))["weights"]
    assert weights.shape == (2, 9, 9)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
    assert not np.triu(weights, 1).any()
    with pytest.raises(ConfigError, match="there is no block 2"):
        playground.attention(studio, AttentionRequest("small", tokens=ids, layer=2))


def test_attention_of_a_long_window_is_a_part_of_the_whole(
    studio: StudioState, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = studio.load("small")[1].encode("10 green ").tolist()
    whole = playground.attention(studio, AttentionRequest("small", tokens=ids))["weights"]
    monkeypatch.setattr(playground, "MAX_MAP", 4)
    for stop, rows in ((None, slice(5, 9)), (7, slice(3, 7)), (2, slice(0, 2)), (99, slice(5, 9))):
        part = playground.attention(studio, AttentionRequest("small", tokens=ids, stop=stop))["weights"]
        np.testing.assert_array_equal(part, whole[:, rows, rows])


def test_a_character_of_several_tokens_is_shown_with_its_last() -> None:
    tokenizer = ByteTokenizer()
    stream = tokenizer.stream()
    tokens = [playground._text_token(tokenizer, token, stream) for token in [*"水!".encode(), tokenizer.eos_token_id]]
    assert [token.get("shown") for token in tokens] == ["", "", "水", "!", None]
    assert tokens[0]["text"] == "\\xe6"


def test_requests_that_go_too_far(studio: StudioState, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="17 tokens exceed the model's context of 16"):
        playground.attention(studio, AttentionRequest("small", tokens=[1] * 17))
    monkeypatch.setattr(playground, "MAX_WEIGHTS", 2 * 2 * 4**2)  # two blocks of two heads
    with pytest.raises(ConfigError, match="weights of 5 tokens are too many"):
        playground.attention(studio, AttentionRequest("small", tokens=[1] * 5))
    with pytest.raises(ConfigError, match="not in the model's vocabulary"):
        playground.lens(studio, LogitLensRequest("small", tokens=[9999]))
    with pytest.raises(TokenError):
        playground.lens(studio, LogitLensRequest("small", tokens=[1], chosen=9999))
    with pytest.raises(ConfigError, match="there is no run"):
        playground.generate(studio, GenerateRequest("../small"))


def test_over_http(client: TestClient) -> None:
    answer = client.post("/api/playground/generate", json={"run": "small", "prompt": "1", "max_new_tokens": 3})
    lines = answer.text.splitlines()
    assert (answer.status_code, lines[0].startswith('{"prompt":')) == (200, True)
    assert '"finish_reason"' in lines[-1]
    for request in (
        {"run": "small", "max_new_tokens": 10**9},
        {"run": "small", "prompt": "x" * 20_001},
        {"run": "small", "checkpoint": "9" * 17},
        {"run": "small", "folder": "/"},
    ):
        assert client.post("/api/playground/generate", json=request).status_code == 422
    unknown = client.post("/api/playground/generate", json={"run": "small", "prompt": "\u6c34"})
    assert (unknown.status_code, "error" in unknown.json()) == (400, True)
    assert client.post("/api/playground/attention", json={"run": "small", "tokens": []}).status_code == 422
