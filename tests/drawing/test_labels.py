"""What a drawing says: which norm it is, what the axes are called, the shape that the caller gives, and the title."""

import dataclasses
import re
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import normscope
from normscope.drawing.draw_model import draw_model
from normscope.inspection.draw import CONFIGS, draw_block, draw_preset
from tests.drawing.drawn_models import whole
from tests.pairs import every_value


@pytest.mark.parametrize(
    ("preset", "norm", "words"),
    [
        ("gpt2", None, "layer ... [d]"),
        ("nanochat", None, "rms ... [d]"),
        ("encoder", "batch", "batch [b s] d"),
        ("encoder", "b [s d]", "Norm b [s d]"),
        ("convnet", None, "batch [n] c [h w]"),
        ("convnet", "group", "group n (g [c]) [h w]"),
    ],
)
def test_the_label_of_a_norm(preset: str, norm: str | None, words: str) -> None:
    shallow = {} if preset == "convnet" else {"depth": 2}
    drawing = draw_preset(preset, None, {"norm": norm, **shallow}, expand=False) if norm else whole(preset)
    assert f" {words} " in drawing.text


def test_a_subclass_of_a_norm_keeps_its_name() -> None:
    net = nn.Sequential(nn.Linear(4, 4), normscope.RMSNorm(4), normscope.LayerNorm(4))
    text = draw_model(net, torch.randn(2, 4)).text
    assert "RMSNorm ... [d]" in text
    assert "LayerNorm ... [d]" in text


@every_value(name=list(CONFIGS), inside={"inside": True, "outside": False})
def test_every_model_has_axis_names_and_a_legend(name: str, inside: bool) -> None:
    drawing = whole(name, inside)
    stream = "n c h w" if name == "convnet" else "b s d"
    for words in (drawing.text, drawing.svg):
        assert stream in words
        assert ("n batch" if name == "convnet" else "b batch") in words
    if inside and name != "convnet":
        assert "b s h e 8×" in drawing.svg  # a page has the room
        assert "b s h e" in drawing.text


def test_sizes_that_do_not_fit_are_in_the_legend() -> None:
    drawing = draw_block("gpt2", (8, 1024, 768), {"wiring": "post"})
    head = " ".join(drawing.head)
    assert "s tokens 1024" in head
    assert "h heads 12, e head dimension 64" in head
    assert " b s h e " in drawing.text
    assert " b s h e 8" not in drawing.text
    assert "b s d 8×1024×768" in drawing.text
    assert max(map(len, drawing.text.splitlines())) <= 80


def test_axes_of_several_sizes_have_no_size_in_the_legend() -> None:
    lanes = nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 3, 64)
    names = {(2, 3, 64): "batch tokens width", (3, 64): "batch width"}  # two sizes of a batch
    drawing = draw_model(lanes, x, x, x, axes=names)
    assert "batch 2" not in " ".join(drawing.head)


def test_an_input_is_drawn_in_its_own_shape() -> None:
    text = whole("vit").text
    assert re.search(
        r"images\n +b c y x 8×3×224×224\n.*\n.* reshape, permute, flatten .*\n.*\n +b s d 8×196×768\n.*\n.*embedding",
        text,
    )
    flat = draw_model(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.randn(5, 3, 2, 2)).text
    assert re.search(r"input\n +5×3×2×2\n.*\n.* 0 .*\n.* Flatten .*\n.*\n +5×12\n", flat)


class Parts(nn.Module):
    """Reads its input part by part."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.relu(self.cell(x[:, 0])) * self.cell(x[:, 1])
        return y


def test_an_input_that_is_used_in_several_shapes_has_no_box() -> None:
    text = draw_model(Parts(), torch.randn(2, 2, 3)).text
    assert "getitem" not in text
    assert "look up" not in text


@pytest.mark.parametrize("name", CONFIGS)
def test_the_title_fits(name: str) -> None:
    words = whole(name).title.replace(" parameters", ",000 parameters")  # also of a large model
    drawing = dataclasses.replace(whole(name), title=words)
    root = ElementTree.fromstring(drawing.svg)
    (title,) = (node for node in root.findall(".//{*}text") if node.text == drawing.title)
    widest = 9.0  # of a bold letter in DejaVu Sans, on average; other fonts are narrower
    assert float(title.attrib["x"]) + widest * len(drawing.title) <= float(root.attrib["width"])
