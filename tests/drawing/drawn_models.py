"""What the tests of drawings share: modules that others might have written, and ways to walk over a drawing."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.block import Block
from normscope.drawing.draw_model import Drawing
from normscope.drawing.structure import Chain, FrameItem, MergeItem, NodeItem, ResidualItem
from normscope.inspection.draw import draw_preset
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from normscope.tracing.recorder import trace_model
from normscope.tracing.trace import ModelTrace

SMALL = {"vocab_size": 50, "context": 16, "width": 24, "heads": 6, "depth": 1}


@cache
def whole(name: str, inside: bool = False) -> Drawing:
    """The drawing of a preset. Two blocks are folded into one as twelve are, in a sixth of the time."""
    return draw_preset(name, None, {} if name == "convnet" else {"depth": 2}, inside)


def small_block(name: str, **settings: Any) -> Block:
    block = GPT(preset(name, **{**SMALL, "value_embeddings": False, **settings})).eval().blocks[0]
    assert isinstance(block, Block)
    return block


def traced(model: nn.Module, *inputs: Any, **options: Any) -> ModelTrace:
    return trace_model(model, inputs, options)


def frames(chain: Chain) -> Iterator[FrameItem]:
    """All the frames of a drawing, from the outside in."""
    for item in chain.items:
        for inner in _lines(item):
            yield from frames(inner)
        if isinstance(item, FrameItem):
            yield item
            yield from frames(item.chain)


def residuals(chain: Chain) -> Iterator[ResidualItem]:
    for item in chain.items:
        if isinstance(item, ResidualItem):
            yield item
        for inner in (*_lines(item), *([item.chain] if isinstance(item, FrameItem) else [])):
            yield from residuals(inner)


def drawn_nodes(chain: Chain) -> Iterator[int]:
    """The number of every node that is drawn."""
    for item in chain.items:
        if isinstance(item, NodeItem | MergeItem):
            yield item.node.index
        if isinstance(item, ResidualItem):
            yield from (branch.join.index for branch in item.branches)
        for inner in (*_lines(item), *([item.chain] if isinstance(item, FrameItem) else [])):
            yield from drawn_nodes(inner)


def _lines(item: object) -> list[Chain]:
    if isinstance(item, MergeItem):
        return list(item.lanes)
    if not isinstance(item, ResidualItem):
        return []
    shortcut = [] if item.shortcut is None else [item.shortcut]
    return [*shortcut, item.shared, *(branch.chain for branch in item.branches)]


class BasicBlock(nn.Module):
    """A residual network's block, as people write it by hand: in place, with a shortcut where the shape changes."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.down = None if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        z: Tensor = self.relu(y)
        return z


class BranchesOnValues(nn.Module):
    """Control flow that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.left(x) if x.sum() > 0 else self.right(x)
        return x + y


class HasSideEffects(nn.Module):
    """A model with side effects: on buffers, attributes, lists and the RNG."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.seen: list[Tensor] = []
        self.table: Tensor | None = None
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        self.table = torch.ones(4)
        self.seen.append(x)
        y: Tensor = self.drop(self.norm(x)) + torch.rand(4)
        if self.fails:
            raise RuntimeError("in the middle")
        return y * self.table
