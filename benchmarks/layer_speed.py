"""How fast are the layers compared with torch's, and with the memory bandwidth limit?

.venv/bin/python benchmarks/layer_speed.py [--compile]

Forward and backward, float32, all cores; first with the allocator as it is, then with one that keeps what it has (see
normscope.runtime.memory), because torch's chains of operations live by its mood. The limit is the time that
the bytes which must move would take at the speed of a copy, measured between buffers as large as all of them. What is
kept for the backward pass is compared too. For small layers the time is that of the call: the first rows show how fast
an autograd.Function would be that does nothing but allocate its results. With --compile, also against torch.compile of
torch's layer, once it is warm (it takes some minutes more).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import normscope
from normscope.blocks.activations import relu2
from normscope.blocks.fused_norms import add_and_normalize
from normscope.runtime.memory import keep_freed_memory
from timing import copy_seconds, medians

SMALL_ROWS = ((16, 64), (64, 64), (256, 128))
ROWS = ((768, 128), (2048, 384), (4096, 768), (8192, 768))
SMALL_IMAGES = ((4, 8, 4, 4), (2, 32, 8, 8))
IMAGES = ((32, 64, 56, 56), (8, 256, 28, 28))

Shape = tuple[int, ...]


class AddNorm(nn.Module):
    """Residual add followed by a norm; returns the sum and the normalized sum."""

    def __init__(self, norm: nn.Module, fused: bool) -> None:
        super().__init__()
        self.norm, self.fused = norm, fused

    def forward(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        if self.fused:
            return add_and_normalize(x, branch, self.norm)
        total = x + branch
        return total, self.norm(total)


class FunctionLayer(nn.Module):
    """Wraps a function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclass(frozen=True)
class Question:
    layer: str
    bar: float
    """Target speedup over torch."""
    shapes: Sequence[Shape]
    ours: Callable[[Shape], nn.Module]
    theirs: Callable[[Shape], nn.Module]
    moved: int = 5
    """Tensors to move: x in, y out; x and dy in, dx out."""
    inputs: int = 1


class _NoArithmetic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class EmptyFunction(nn.Module):
    """A norm that computes nothing: the least that an autograd.Function in Python can take."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _NoArithmetic.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return y


def _floor(name: str, peer: Callable[[Shape], nn.Module]) -> Question:
    """How fast a norm could be at best: an autograd.Function that computes nothing, against torch's."""
    return Question(
        f"empty function (floor), vs. {name}", 1.0, (*SMALL_ROWS, *ROWS[:1]), lambda s: EmptyFunction(s[1]), peer
    )


QUESTIONS = (
    _floor("RMSNorm", lambda s: nn.RMSNorm(s[1])),
    _floor("LayerNorm", lambda s: nn.LayerNorm(s[1])),
    Question("small RMSNorm", 1.0, SMALL_ROWS, lambda s: normscope.RMSNorm(s[1]), lambda s: nn.RMSNorm(s[1])),
    Question("small LayerNorm", 1.0, SMALL_ROWS, lambda s: normscope.LayerNorm(s[1]), lambda s: nn.LayerNorm(s[1])),
    Question(
        "small GroupNorm", 1.0, SMALL_IMAGES, lambda s: normscope.GroupNorm(4, s[1]), lambda s: nn.GroupNorm(4, s[1])
    ),
    Question(
        "small BatchNorm2d", 1.0, SMALL_IMAGES, lambda s: normscope.BatchNorm2d(s[1]), lambda s: nn.BatchNorm2d(s[1])
    ),
    Question("RMSNorm", 4.0, ROWS, lambda s: normscope.RMSNorm(s[1]), lambda s: nn.RMSNorm(s[1])),
    Question("LayerNorm", 1.15, ROWS, lambda s: normscope.LayerNorm(s[1]), lambda s: nn.LayerNorm(s[1])),
    Question("ReLU²", 2.0, ROWS, lambda s: FunctionLayer(relu2), lambda s: FunctionLayer(lambda x: F.relu(x).square())),
    Question(
        "add + RMSNorm",
        5.0,
        ROWS,
        lambda s: AddNorm(normscope.RMSNorm(s[1]), fused=True),
        lambda s: AddNorm(nn.RMSNorm(s[1]), fused=False),
        moved=8,
        inputs=2,
    ),
    Question("BatchNorm2d", 1.7, IMAGES, lambda s: normscope.BatchNorm2d(s[1]), lambda s: nn.BatchNorm2d(s[1])),
    Question(
        "InstanceNorm2d", 2.5, IMAGES, lambda s: normscope.InstanceNorm2d(s[1]), lambda s: nn.InstanceNorm2d(s[1])
    ),
    Question("GroupNorm", 1.1, IMAGES, lambda s: normscope.GroupNorm(8, s[1]), lambda s: nn.GroupNorm(8, s[1])),
    Question("LayerNorm, c h w", 1.3, IMAGES, lambda s: normscope.LayerNorm(s[1:]), lambda s: nn.LayerNorm([*s[1:]])),
)


def step(layer: Any, given: list[Tensor], gradient: Tensor) -> Callable[[], object]:
    """A forward and a backward pass, without gradient accumulation."""
    inputs = [*given, *layer.parameters()]

    def run() -> object:
        y = layer(*given)
        outputs = y if isinstance(y, tuple) else (y,)
        return torch.autograd.grad(outputs, inputs, [gradient] * len(outputs))

    return run


def kept(layer: nn.Module, given: list[Tensor]) -> int:
    """Bytes saved for backward, without duplicates."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(*given)
    return sum(sizes.values())


class Case:
    """A layer and a shape, for normscope and torch."""

    def __init__(self, question: Question, shape: Shape) -> None:
        torch.manual_seed(0)
        self.question, self.shape = question, shape
        self.given = [torch.randn(shape, requires_grad=True) for _ in range(question.inputs)]
        self.gradient = torch.randn(shape)
        self.ours, self.theirs = question.ours(shape), question.theirs(shape)

    def times(self, *more: Any) -> list[float]:
        """Times of normscope, torch, and further layers."""
        return medians([step(layer, self.given, self.gradient) for layer in (self.ours, self.theirs, *more)])

    def ratio(self, mine: float, theirs: float) -> str:
        return f"{theirs / mine:.2f} x{'' if theirs / mine >= self.question.bar else ' *'}"

    def answer(self, compiled: bool) -> list[str]:
        """Results with an allocator that keeps freed memory."""
        torch.compiler.reset()
        mine, theirs, *others = self.times(*([torch.compile(self.theirs, dynamic=False)] if compiled else []))
        limit = copy_seconds(self.question.moved * self.gradient.numel()) / 2  # a copy moves each value twice
        return [
            self.ratio(mine, theirs),
            *(f"{other / mine:.2f} x" for other in others),
            f"{limit / mine:.0%}",
            f"{kept(self.ours, self.given) / max(kept(self.theirs, self.given), 1):.2f}",
        ]


def table(compiled: bool) -> Table:
    columns = [
        "layer",
        "shape",
        "target",
        "vs. torch.nn",
        "vs. torch.nn, cached allocator",
        "of the limit",
        "saved for backward",
    ]
    if compiled:
        columns.insert(5, "vs. torch.compile")
    title = f"forward + backward, float32, {torch.get_num_threads()} threads (* below target)"
    found, progress = Table(*columns, title=title, box=None), Console(stderr=True)
    cases = [(question, shape) for question in QUESTIONS for shape in question.shapes]
    as_it_is = []
    for question, shape in track(cases, "layers", console=progress, transient=True):
        case = Case(question, shape)
        as_it_is.append(case.ratio(*case.times()))
    keep_freed_memory()
    for (question, shape), ratio in track(
        list(zip(cases, as_it_is, strict=True)), "and again", console=progress, transient=True
    ):
        answer = Case(question, shape).answer(compiled)
        found.add_row(question.layer, " x ".join(map(str, shape)), f"{question.bar:g} x", ratio, *answer)
    return found


if __name__ == "__main__":
    Console(width=120).print(table(compiled="--compile" in sys.argv))
