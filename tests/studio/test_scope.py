"""The tab "Scope": groups, statistics and results agree with torch, padding is told apart, and requests have limits."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

from normscope.errors import ConfigError, ScopeError, ShapeError
from normscope.learning.norm_layers import LAYOUTS, NormName
from normscope.studio.endpoints import NoArguments, encode
from normscope.studio.state import StudioState
from normscope.studio.views import scope as view

STUDIO = StudioState(Path("nowhere"))
NAMES = get_args(NormName)


def work(layout: str = "image", **request: Any) -> dict[str, Any]:
    """The answer as the page gets it."""
    request = {"layout": layout, "shape": LAYOUTS[layout].example, **request}  # type: ignore[index]
    decoded = msgspec.json.decode(json.dumps(request), type=view.ScopeRequest)
    found: dict[str, Any] = json.loads(encode(view.work(STUDIO, decoded)))
    return found


@pytest.mark.parametrize("layout", ["image", "text"])
@pytest.mark.parametrize("norm", NAMES)
def test_result_is_that_of_torch(layout: str, norm: str) -> None:
    found = work(layout, norm=norm, edits={"3": 7.5}, weight={"0": 2.0}, bias={"0": 0.5})
    assert found["torch"]["difference"] < 1e-12
    assert found["x"][3] == 7.5
    torch.testing.assert_close(found["normalized"], found["torch"]["normalized"], atol=1e-12, rtol=0)
    torch.testing.assert_close(found["moment"], found["torch"]["moment"], atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", NAMES)
def test_every_step_follows_from_the_one_before(norm: str) -> None:
    found = work(norm=norm, weight={"1": -3.0}, bias={"1": 0.25})
    for i, group in enumerate(found["groups"]):
        shared = [x for x, other in zip(found["x"], found["groups"], strict=True) if other == group]
        mean = sum(shared) / len(shared) if found["centers"] else 0.0
        moment = sum((x - mean) ** 2 for x in shared) / len(shared)
        assert len(shared) == found["count"]
        assert found["moment"][group] == pytest.approx(moment)
        divisor = (found["running"][group] if found["running"] else moment) + found["eps"]
        normalized = (found["x"][i] - mean) / divisor**0.5
        assert found["normalized"][i] == pytest.approx(normalized)
        entry = found["parameters"][i]
        bias = found["bias"][entry] if found["bias"] else 0.0
        assert found["result"][i] == pytest.approx(found["weight"][entry] * normalized + bias)


def test_editing_a_value_changes_its_group_only() -> None:
    before, after = work(norm="instance"), work(norm="instance", edits={"0": 5.0})
    changed = {group for group, (a, b) in enumerate(zip(before["mean"], after["mean"], strict=True)) if a != b}
    assert changed == {before["groups"][0]}
    outputs = {after["groups"][i] for i in range(72) if before["result"][i] != after["result"][i]}
    assert outputs == changed


def test_groups_go_from_instance_norm_to_layer_norm() -> None:
    (split,) = work(norm="group")["splits"]
    assert split["sizes"] == [1, 2, 4]
    assert split["same_as"] == [["LayerNorm", "GroupNorm"], ["GroupNorm"], ["InstanceNorm", "GroupNorm"]]
    assert work(norm="group", sizes={"g": 4})["groups"] == work(norm="instance")["groups"]
    assert work(norm="group", sizes={"g": 1})["groups"] == work(norm="layer")["groups"]


@pytest.mark.parametrize(("norm", "wrong"), [("batch", 4), ("instance", 8), ("layer", 0), ("rms", 0), ("power", 4)])
def test_padding_spoils_statistics_across_tokens(norm: str, wrong: int) -> None:
    counted = work("text", norm=norm, padding=True)
    assert sum(counted["padding"]["wrong"]) == wrong
    masked = work("text", norm=norm, padding=True, masked=True)
    real = [i for i, is_real in enumerate(masked["mask"]) if is_real]
    assert len(real) == 11 * 4
    for group, counts in enumerate(masked["padding"]["real"]["counts"]):
        if counts:
            assert masked["moment"][group] == pytest.approx(masked["padding"]["real"]["moment"][group])
    other = work("text", norm=norm, padding=True, masked=True, pad_value=1000.0)
    assert [masked["result"][i] for i in real] == [other["result"][i] for i in real]
    without = work("text", norm=norm, padding=True, pad_value=1000.0)
    same = [counted["result"][i] for i in real] == pytest.approx([without["result"][i] for i in real])
    # PowerNorm divides by the statistics of earlier batches: padding spoils the ones that come after.
    assert same == (wrong == 0 or norm == "power")


def test_power_norm_approaches_the_mean_square_of_its_batches() -> None:
    start, later = work(norm="power"), work(norm="power", earlier_batches=50)
    assert start["running"] == [1.0] * 4
    distances = [
        max(abs(a - b) for a, b in zip(found["running"], found["moment"], strict=True)) for found in (start, later)
    ]
    assert distances[1] < distances[0] / 50
    assert start["next_running"] == pytest.approx([0.9 + 0.1 * square for square in start["moment"]])


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("n [c", (2, 3)),
        ("n c h w", (0, 7)),
        ("n [c] c w", (6, 7)),
        ("n [c h w] x", (0, 11)),
        ("", (0, 0)),
        ("  ", (2, 2)),
    ],
)
def test_scope_errors_point_at_characters(text: str, span: tuple[int, int]) -> None:
    with pytest.raises(ScopeError) as raised:
        work(scope=text)
    assert raised.value.span == span


@pytest.mark.parametrize("text", ["[...]", "n (a b [c]) [...]", "n c (p [h]) [w]", "[n] ... w", "n [c] h w"])
@pytest.mark.parametrize("statistic", ["standardize", "rms"])
def test_any_scope_works(text: str, statistic: str) -> None:
    found = work(scope=text, statistic=statistic, padding=True, masked=False)
    assert found["torch"]["difference"] < 1e-12
    assert (found["mean"] is None) == (statistic == "rms")


def test_typed_scope_is_recognized() -> None:
    assert work(scope="[m] k [y x]")["same_as"] == ["BatchNorm"]
    assert work(scope="[m] k [y x]", statistic="rms")["same_as"] == []


def test_wrong_group_size_is_a_scope_error() -> None:
    with pytest.raises(ScopeError, match="divisor"):
        work(norm="group", sizes={"g": 3})


def test_one_value_per_statistic_is_refused() -> None:
    with pytest.raises(ShapeError):
        work(norm="batch", shape=[1, 4, 1, 1])


@pytest.mark.parametrize(
    "request_",
    [
        {"shape": [10**9, 1, 1, 1]},
        {"shape": [0, 1, 1, 1]},
        {"shape": [2] * 9},
        {"scope": "a " * 101},
        {"edits": {"0": 1e300}},
        {"sizes": {"g": 10**12}},
        {"earlier_batches": 10**9},
        {"unknown": 1},
        {"norm": "../etc"},
    ],
)
def test_requests_out_of_bounds_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        work(**request_)


@pytest.mark.parametrize("shape", [[16, 16, 16, 16], [2, 3]])
def test_shapes_that_do_not_fit_are_refused(shape: list[int]) -> None:
    with pytest.raises(ConfigError):
        work(norm="batch", shape=shape)


def test_edits_beyond_the_tensor_are_ignored() -> None:
    assert work(norm="layer", edits={"-1": 9.0, "9999": 9.0}, weight={"9999": 2.0})["x"] == work(norm="layer")["x"]


@pytest.mark.parametrize("norm", NAMES)
def test_layouts_hold_the_same_values(norm: Any) -> None:
    found = json.loads(encode(view.layouts(STUDIO, view.LayoutsRequest(norm))))
    images, text = found["image"], found["text"]
    assert text["shape"] == [2, 4, 3]
    assert [images["values"][i] for i in text["same"]] == text["values"]
    if norm in ("batch", "power"):  # a channel is a feature: the same values share statistics
        assert [images["groups"][i] for i in text["same"]] == text["groups"]


def test_offer_names_all_norms() -> None:
    offer = view.norms(STUDIO, NoArguments())
    titles = [norm["title"] for norm in offer["norms"]]
    assert titles == ["BatchNorm", "LayerNorm", "InstanceNorm", "GroupNorm", "RMSNorm", "PowerNorm"]
