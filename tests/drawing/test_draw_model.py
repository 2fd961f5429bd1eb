"""Drawings of blocks and models: everything is drawn once, folded as often as it is there, and counted in full."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from normscope.blocks.residual import WIRINGS
from normscope.drawing.compose import compose
from normscope.drawing.draw_model import Drawing, draw_model
from normscope.drawing.graph import build_graph
from normscope.drawing.idioms import collapse_idioms
from normscope.drawing.marks import Label, Rectangle
from normscope.drawing.structure import NodeItem
from normscope.errors import ConfigError
from normscope.inspection.draw import draw_block, draw_preset
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from tests.drawing.drawn_models import SMALL, BasicBlock, drawn_nodes, frames, residuals, small_block, traced, whole
from tests.pairs import chiefly, every_value

GOLDEN = Path(__file__).parent / "golden"
BLOCK = (2, 5, 24)


def gpt(name: str, **settings: object) -> GPT:
    return GPT(preset(name, **{**SMALL, **settings})).eval()


def tokens() -> Tensor:
    return torch.zeros(2, 5, dtype=torch.int64)


PICTURES: dict[str, Callable[[], Drawing]] = {
    "block_nanochat": lambda: draw_block("nanochat", (8, 1024, 768), {}),
    "block_llama_parallel": lambda: draw_block("llama", (2, 64, 96), {"wiring": "parallel"}),
    "model_gpt2": lambda: draw_preset("gpt2", None, {}, expand=False),
}


@cache
def picture(name: str) -> Drawing:
    return PICTURES[name]()


PLAIN = ["gpt2", "nanochat", "llama"]
"""Presets whose blocks read the stream only."""


@pytest.mark.parametrize("name", PICTURES)
def test_golden(name: str) -> None:
    assert picture(name).text + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@every_value(wiring=list(WIRINGS), name=PLAIN)
def test_every_box_of_a_block_is_drawn_once(name: str, wiring: str) -> None:
    trace = traced(small_block(name, wiring=wiring, qk_norm="rms"), torch.randn(BLOCK))
    chain = compose(trace, expand=True)[0]
    assert sorted(drawn_nodes(chain)) == sorted(collapse_idioms(build_graph(trace)).nodes)
    assert sum(len(residual.branches) for residual in residuals(chain)) == {"single": 1, "none": 0}.get(wiring, 2)
    assert {trace.calls[frame.call].path for frame in frames(chain)} == {"attention", "mlp"}


@every_value(wiring=list(WIRINGS), name=list(PRESETS))
def test_a_block_fits_a_terminal(name: str, wiring: str) -> None:
    drawing = draw_block(name, (8, 1024, 768), {"wiring": wiring, "qk_norm": "rms"})
    assert max(map(len, drawing.text.splitlines())) <= 80
    assert drawing.rich.plain == drawing.text


def test_parallel_branches_share_their_norm() -> None:
    chain = compose(traced(small_block("llama", wiring="parallel"), torch.randn(BLOCK)), expand=True)[0]
    (residual,) = residuals(chain)
    assert len(residual.shared.items) == 1
    assert len(residual.branches) == 2


@every_value(name=PLAIN, depth={"1": 1, "3": 3})
def test_repeated_blocks_are_folded_and_all_parameters_counted(name: str, depth: int) -> None:
    model = gpt(name, depth=depth)
    drawing = draw_model(model, tokens())
    frame_of = {drawing.trace.calls[frame.call].path: frame for frame in frames(drawing.chain)}
    blocks = [frame for path, frame in frame_of.items() if re.fullmatch(r"blocks\.\d+", path)]
    assert sum(block.times for block in blocks) == depth
    total = sum(parameter.numel() for parameter in model.blocks.parameters())
    assert sum(block.times * block.parameters for block in blocks) == total
    _, parameters = compose(drawing.trace)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(drawing.trace.parameter_sizes[name] for name in parameters) == total
    assert drawing.notes == ()
    assert f"{total:,} parameters" in drawing.title


@pytest.mark.parametrize("activation", ["relu2", "geglu"])  # of other parts, or of the same with another function
def test_a_block_that_differs_is_not_folded(activation: str) -> None:
    model = gpt("llama", depth=4)
    model.blocks[2] = small_block("llama", activation=activation)
    assert [frame.times for frame in frames(draw_model(model, tokens()).chain)] == [2, 1, 1]


def test_unused_parameters_are_noted() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 4), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.used(x)
            return y

    assert draw_model(Half(), torch.randn(2, 3)).notes == (
        "20 parameters do not contribute to the output and are not drawn",
    )


def test_a_convolutional_model() -> None:
    net = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4), BasicBlock(4, 8, stride=2))
    drawing = draw_model(net, torch.randn(2, 4, 6, 6))
    assert [frame.times for frame in frames(drawing.chain)] == [2, 1]
    assert drawing.text.count("(+)◀") == 2
    assert "▶(+)" not in drawing.text
    *_, last = residuals(drawing.chain)
    assert last.shortcut is not None  # the last block projects its input: the box lies on the stream
    (box,) = last.shortcut.items
    assert isinstance(box, NodeItem)
    assert drawing.trace.calls[box.node.call].name == "down"


def test_multihead_attention_is_drawn_with_its_contents() -> None:
    drawing = draw_model(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8))
    (frame,) = frames(drawing.chain)
    assert drawing.trace.calls[frame.call].path == "self_attn"
    assert "linear by in_proj" in drawing.text
    assert "linear by out_proj" in drawing.text


def test_an_encoder_decoder_model() -> None:
    model = nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, batch_first=True)
    drawing = draw_model(model, torch.randn(2, 7, 8), torch.randn(2, 5, 8))
    assert [frame.times for frame in frames(drawing.chain)] == [2]  # the encoder; the decoder's layer takes two inputs
    assert "2×7×8" in drawing.text
    assert "2×5×8" in drawing.text


def of_transformers(kind: str, depth: int) -> nn.Module:
    """A small model of the library; its configs and models have no types."""
    import transformers

    library: Any = transformers
    size = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    size["num_hidden_layers"] = depth
    if kind == "gpt2":
        config = library.GPT2Config(vocab_size=30, n_layer=depth, n_embd=16, n_head=4, n_positions=8)
        model = library.GPT2LMHeadModel(config)
    elif kind == "llama":
        model = library.LlamaForCausalLM(library.LlamaConfig(**size, num_key_value_heads=2))
    else:
        model = library.BertModel(library.BertConfig(**size))
    assert isinstance(model, nn.Module)
    return model.eval()


@pytest.mark.parametrize("kind", chiefly(["gpt2", "bert"], ["llama"]))  # another test here draws a llama
def test_models_of_transformers(kind: str) -> None:
    model = of_transformers(kind, depth=3)
    drawing = draw_model(model, tokens())
    (block,) = frames(drawing.chain)
    assert block.times == 3
    assert [len(residual.branches) for residual in residuals(block.chain)] == [1, 1]
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(drawing.trace.parameter_sizes[name] for name in compose(drawing.trace)[1]) == total
    assert "4 heads" in drawing.text
    assert ("tied to transformer.wte.weight" in drawing.text) == (kind == "gpt2")


def test_rotary_embeddings_and_grouped_heads_of_transformers_are_recognized() -> None:
    text = draw_model(of_transformers("llama", depth=1), tokens(), expand=True).text
    assert text.count("rotary positions") == 2
    assert "2×4×5×4" in text
    assert "2×2×5×4" in text
    assert "4 heads, causal" in text


def drawings() -> list[Drawing]:
    return [
        draw_block("nanochat", (8, 1024, 768), {"wiring": wiring, "activation": "swiglu"}) for wiring in WIRINGS
    ] + [whole(name) for name in ("gpt2", "encoder", "vit", "convnet")]


@pytest.fixture(scope="module")
def all_drawings() -> list[Drawing]:
    return drawings()


def test_no_box_covers_another(all_drawings: list[Drawing]) -> None:
    for drawing in all_drawings:
        boxes = [m for m in drawing.layout.marks if isinstance(m, Rectangle) and m.kind not in ("frame", "repeated")]
        cells = [(x, y) for b in boxes for x in range(b.x, b.x + b.width) for y in range(b.y, b.y + b.height)]
        labels = [m for m in drawing.layout.marks if isinstance(m, Label)]
        for label in labels:
            first = label.x - len(label.text) // 2 if label.is_centered else label.x
            cells += [(first + i, label.y) for i in range(len(label.text))]
        assert len(cells) == len(set(cells)), drawing.text


def test_the_svg_is_self_contained_and_has_the_labels_of_the_text(all_drawings: list[Drawing]) -> None:
    for drawing in all_drawings:
        image = drawing.svg
        root = ElementTree.fromstring(image)
        words = {node.text for node in root.findall(".//{*}text")}
        for mark in drawing.layout.marks:
            if isinstance(mark, Rectangle):
                assert set(mark.lines) <= words
            elif isinstance(mark, Label):
                assert mark.text in words
        assert "prefers-color-scheme: dark" in image
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|href", image) == []
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for node in root.findall(".//{*}rect"):
            assert float(node.attrib["x"]) + float(node.attrib["width"]) <= width
            assert float(node.attrib["y"]) + float(node.attrib["height"]) <= height


def test_the_stream_is_one_straight_line(all_drawings: list[Drawing]) -> None:
    for drawing in all_drawings:
        columns = {line.index("┃") for line in drawing.text.splitlines() if "┃" in line}
        assert len(columns) == (0 if "wiring none" in drawing.title or "convnet" in drawing.title else 1)


def test_axes_are_named_only_where_they_are_known() -> None:
    assert "b s k e 8×1024×4×64" in draw_block("llama", (8, 1024, 768), {}).text
    same = draw_block("nanochat", (2, 6, 24), {"heads": 6, "qk_norm": None}).text  # as many tokens as heads
    assert "b s h e" not in same
    assert "b h s e" not in same
    assert "2×6×6×4" in same


def test_axes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"names 2 axes, but the first input has the shape \(2, 5, 24\)\nfix: "):
        draw_model(small_block("gpt2"), torch.randn(BLOCK), axes="b s")


@pytest.mark.parametrize("name", ["block_nanochat", "model_gpt2"])
def test_the_images_in_the_docs_are_up_to_date(name: str) -> None:
    image = Path(__file__).parents[2] / "docs" / "images" / f"{name}.svg"
    assert image.read_text(encoding="utf-8") == picture(name).svg, "make it again: python examples/block_images.py"
