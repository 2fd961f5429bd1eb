"""The tab "Embedding": text and images become sequences, as the library's own layers make them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from normscope.errors import ConfigError, NormscopeError
from normscope.studio.endpoints import NoArguments, encode
from normscope.studio.state import StudioState
from normscope.studio.views import embedding as view
from tests.studio.serving import RUN

STUDIO = StudioState(RUN.parent)


def ask(endpoint: Any, kind: type, **request: Any) -> dict[str, Any]:
    """The answer as the page gets it."""
    decoded: Any = msgspec.json.decode(json.dumps(request), type=kind)
    found: dict[str, Any] = json.loads(encode(endpoint(STUDIO, decoded)))
    return found


def text(**request: Any) -> dict[str, Any]:
    return ask(view.text, view.TextRequest, **request)


def image(**request: Any) -> dict[str, Any]:
    return ask(view.image, view.ImageRequest, **request)


def test_lines_become_a_padded_batch() -> None:
    found = text(text="hello\nhi\n")
    assert found["tokens"] == [list("hello"), list("hi")]
    assert found["mask"] == [[True] * 5, [True] * 2 + [False] * 3]
    assert found["ids"][1][2:] == [found["pad"]] * 3
    assert found["shape"] == [2, 5, found["width"]]


def test_an_id_picks_its_row() -> None:
    found = text(text="abba\nb")
    rows = {row["id"]: row["vector"] for row in found["rows"]}
    for ids, vectors in zip(found["ids"], found["x"], strict=True):
        assert [rows[id] for id in ids] == vectors
    assert found["x"][0][0] == found["x"][0][3] != found["x"][0][1]


def test_bytes_of_other_scripts_are_parts_of_characters() -> None:
    found = text(text="é", tokenizer="bytes")
    assert found["ids"] == [[195, 169]]
    assert found["tokens"] == [["\\xc3", "\\xa9"]]
    assert found["vocab_size"] == 257


def test_run_gives_its_own_table() -> None:
    found = text(text="the", tokenizer="run", run=RUN.name)
    model, tokenizer = STUDIO.load(RUN.name)
    assert found["ids"] == [tokenizer.encode("the").tolist()]
    expected = model.embedding(torch.tensor(found["ids"]))[..., : len(found["x"][0][0])]
    torch.testing.assert_close(torch.tensor(found["x"]), expected.detach())
    assert found["width"] == model.config.width
    assert RUN.name in ask(view.tokenizers, NoArguments)["runs"]


@pytest.mark.parametrize(
    "request_",
    [
        {"text": ""},
        {"text": "\n\n"},
        {"text": "a\n" * 9},
        {"text": "a" * 49},
        {"text": "a", "tokenizer": "run", "run": "../outside"},
        {"text": "\ud800"},
    ],
)
def test_text_out_of_bounds_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises((NormscopeError, msgspec.MsgspecError, UnicodeError)):
        text(**request_)


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_patches_are_pieces_of_the_image(patch: int) -> None:
    found = image(patch=patch)
    count = (8 // patch) ** 2
    assert found["patches_shape"] == [1, count, 3 * patch**2]
    assert found["embedded_shape"][:2] == [1, count]
    pixels = torch.tensor(found["pixels"]).reshape(3, 8, 8)
    unfolded = torch.nn.functional.unfold(pixels[None], patch, stride=patch)[0].T  # another way to cut patches
    torch.testing.assert_close(torch.tensor(found["patches"]), unfolded)
    assert sorted(place for patch in found["places"] for place in patch) == list(range(3 * 64))
    assert [[found["pixels"][place] for place in patch] for patch in found["places"]] == found["patches"]


def test_painting_a_pixel_changes_its_patch_only() -> None:
    before = image(patch=4)
    pixels = list(before["pixels"])
    pixels[0] = 1.0
    after = image(patch=4, pixels=pixels)
    changed = [i for i, (a, b) in enumerate(zip(before["embedded"], after["embedded"], strict=True)) if a != b]
    assert changed == [0]


@pytest.mark.parametrize("request_", [{"patch": 3}, {"pixels": [0.5]}])
def test_images_that_do_not_fit_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        image(**request_)


@pytest.mark.parametrize("request_", [{"size": 10**6}, {"patch": 0}, {"pixels": [2.0] * 192}, {"pixels": [0.5] * 769}])
def test_images_out_of_bounds_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        image(**request_)


def test_example_image_is_an_image() -> None:
    picture = view.example_image(16)
    assert picture.shape == (1, 3, 16, 16)
    assert 0 <= picture.min() < picture.max() <= 1


def test_nothing_is_read_without_runs() -> None:
    assert StudioState(Path("/nowhere")).run_names() == []
