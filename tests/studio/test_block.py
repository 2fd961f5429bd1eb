"""The tab "Block": the drawing, the parts and their values."""

from pathlib import Path

import pytest
import torch

from normscope.errors import NormscopeError
from normscope.inspection.module_values import module_values
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from normscope.studio.endpoints import NoArguments
from normscope.studio.state import StudioState
from normscope.studio.views.block import BlockRequest, block, options

TINY = {"vocab_size": 32, "context": 16, "depth": 2, "width": 16, "heads": 2}


@pytest.mark.parametrize("name", PRESETS)
def test_values_of_a_token_are_those_of_the_model(name: str) -> None:
    model = GPT(preset(name, **TINY))
    tokens = torch.randint(32, (7,))
    values = {one.name: one for one in module_values(model, tokens, block=1, position=4)}
    stream: list[torch.Tensor] = []
    hook = model.blocks[1].register_forward_hook(lambda module, given, output: stream.extend((given[0], output)))
    with torch.no_grad():
        model.eval()(tokens[None])
    hook.remove()
    for value, expected in zip((values[""].input, values[""].output), stream, strict=True):
        assert value is not None
        torch.testing.assert_close(value, expected[0, 4])
    assert values["attention.q"].parameters["weight"] == (16, 16)
    assert "return" in values["mlp"].code
    assert values["attention"].formula.startswith("y = softmax")


def test_model_is_left_as_it_was() -> None:
    model = GPT(preset("llama", **TINY)).train()
    module_values(model, torch.tensor([1, 2]))
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("arguments", [{"block": 2}, {"block": -3}, {"position": 3}, {"position": -4}])
def test_index_out_of_range(arguments: dict[str, int]) -> None:
    with pytest.raises(NormscopeError, match="out of range"):
        module_values(GPT(preset("llama", **TINY)), torch.tensor([1, 2, 3]), **arguments)


def test_every_box_of_the_drawing_is_a_part(tmp_path: Path) -> None:
    answer = block(StudioState(tmp_path), BlockRequest("nanochat"))
    parts = [part["name"] for part in answer["parts"]]  # type: ignore[attr-defined]
    svg = str(answer["svg"])
    boxes = [piece.partition('"')[0] for piece in svg.split('data-module="')[1:]]
    assert len(boxes) >= 10
    assert set(boxes) <= set(parts)


def test_changed_settings_are_compared_with_the_preset(tmp_path: Path) -> None:
    request = BlockRequest("gpt2", settings={"wiring": "sandwich", "activation": "swiglu"})
    changes = block(StudioState(tmp_path), request)["changes"]
    assert isinstance(changes, dict)
    assert changes["added"] == ["mlp.gate", "norms.2", "norms.3"]
    assert changes["removed"] == []
    before, after = changes["parameters"]
    assert before != after


@pytest.mark.parametrize(
    "request_",
    [
        BlockRequest("gpt5"),
        BlockRequest("run:../secret"),
        BlockRequest("llama", text="a" * 500),
        BlockRequest("llama", settings={"width": 10**9}),
        BlockRequest("llama", settings={"wiring": "up"}),
        BlockRequest("llama", block=7),
    ],
    ids=lambda one: one.model,
)
def test_refused(tmp_path: Path, request_: BlockRequest) -> None:
    with pytest.raises(NormscopeError):
        block(StudioState(tmp_path), request_)


def test_options(tmp_path: Path) -> None:
    found = options(StudioState(tmp_path), NoArguments())
    assert found["presets"] == list(PRESETS)
    assert found["runs"] == []
