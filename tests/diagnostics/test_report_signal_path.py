"""Names and places in the drawings of an x-ray: parts of a block are told apart, and all arithmetic has a row."""

import torch
from torch import Tensor, nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import StepRecord, XrayRecord
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.signal_path import signal_path
from normscope.diagnostics.report.summary import describe_passes
from normscope.diagnostics.report.terminal import render_text


class Output(nn.Module):
    """The end of a branch that adds to the stream itself, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, branch: Tensor, stream: Tensor) -> Tensor:
        added: Tensor = self.norm(self.dense(branch) + stream)
        return added


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.output = nn.Linear(8, 8), Output()

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.output(self.inner(x), x)
        return added


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.up, self.output = Attention(), nn.Linear(8, 8), Output()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        added: Tensor = self.output(torch.relu(self.up(x)), x)
        return added


class Tied(nn.Module):
    """A model whose last product is a function: its head is the embedding."""

    def __init__(self, turn: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.turn = turn or nn.Identity()
        for layer in self.layers if turn else ():
            layer.turn = self.turn

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        for layer in self.layers:
            x = layer(self.turn(x))
        return nn.functional.linear(x, self.embedding.weight)


def record_of(model: nn.Module, batch: Tensor) -> XrayRecord:
    with Xray(model) as look:
        model(batch).square().mean().backward()
    return look.record


def tokens() -> Tensor:
    return torch.arange(12).reshape(3, 4)


def test_parts_of_a_block_that_are_called_alike_are_told_apart() -> None:
    titles = [station.title for station in signal_path(record_of(Tied(), tokens()))]
    assert titles[1:5] == [
        "layers.0 + attention.output",
        "layers.0.attention.output.norm",
        "layers.0 + output",
        "layers.0.output.norm",
    ]
    page = xray_page([record_of(Tied(), tokens())], [])
    for words in (">layers.0<", ">layers.1<", ">attention.output<", ">output<"):
        assert words in page


def test_the_way_ends_at_the_output() -> None:
    last = signal_path(record_of(Tied(), tokens()))[-1]
    assert (last.title, last.name) == ("output", "")
    assert last.rms is not None
    assert last.gradient is not None


def test_an_output_that_a_module_made_is_there_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert [station.name for station in signal_path(record_of(net, torch.randn(5, 4)))] == ["0", "1", "2"]
    layer = Layer()
    assert signal_path(record_of(layer, torch.randn(5, 8)))[-1].name == "output.norm"


def test_all_arithmetic_has_a_row() -> None:
    text = render_text(record_of(Tied(), tokens()), [])
    rows = [line for line in text.splitlines() if "(own ops)" in line]
    assert [row.split()[-2:] for row in rows] == [["6.14", "k"]]  # 12 tokens of 8 features to 32 logits, twice
    assert rows[0].startswith("└ (own ops)")
    page = xray_page([record_of(Tied(), tokens())], [])
    assert page.count("outside submodules") == 1
    assert "(own ops)" not in render_text(record_of(Layer(), torch.randn(5, 8)), [])


def test_a_shared_module_is_named_in_full() -> None:
    text = render_text(record_of(Tied(nn.Linear(8, 8)), tokens()), [])
    assert "turn Linear" in text
    assert any(line.rstrip().endswith("= layers.0.turn") for line in text.splitlines())
    assert "(own ops)" not in text  # whose work is whose cannot be told


def test_steps_are_counted_for_each_optimiser() -> None:
    muon, adam = StepRecord("Muon", 0.02, 1, None), StepRecord("AdamW", 0.003, 1, None)
    said = {
        (): "0 steps",
        (adam,): "1 step of AdamW (lr 0.003)",
        (muon, adam): "1 step of Muon (lr 0.02) and AdamW (lr 0.003)",
        (muon, adam, muon, adam): "2 steps of Muon (lr 0.02) and AdamW (lr 0.003)",
        (muon, muon, adam): "2 steps of Muon (lr 0.02) and 1 step of AdamW (lr 0.003)",
    }
    for steps, words in said.items():
        assert describe_passes(XrayRecord("Net", (), 1, 1, steps)) == f"1 batch, 1 backward pass, {words}"
