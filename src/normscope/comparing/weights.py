"""Compare the weights of two models by our names, one tensor at a time, and hint at reordered rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.models.gpt import GPTConfig


@dataclass(frozen=True)
class TensorDiff:
    """A tensor whose values differ.

    Args:
        name: our name of the tensor.
        largest: largest absolute difference.
        relative: the same, as a share of the largest value.
        hint: how the values are reordered, such as "rows are in another order"; empty if they are other values.
    """

    name: str
    largest: float
    relative: float
    hint: str


@dataclass(frozen=True)
class WeightsDiff:
    """How the weights of two models differ.

    Args:
        count: number of tensors that both have with the same shape.
        missing, extra: tensors that only the first and only the second have.
        shapes: name and shapes of the tensors of different shape.
        tensors: tensors whose values differ, in the order of the model.
        rounded: number of tensors that are equal after rounding to the coarser of their dtypes.
    """

    count: int
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    tensors: tuple[TensorDiff, ...]
    rounded: int = 0

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.extra or self.shapes or self.tensors)


def compare_weights(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], config: GPTConfig, tolerance: float = 0.0
) -> WeightsDiff:
    """Compare tensor by tensor; only two are in memory at a time.

    Args:
        a, b: weights by our names.
        config: config of the first, for the sizes of heads.
        tolerance: largest difference of equal values, as a share of the largest value of the tensor: for quantized
            weights.
    """
    missing = tuple(name for name in a if name not in b)
    extra = tuple(name for name in b if name not in a)
    shapes, tensors, rounded, count = [], [], 0, 0
    for name in (name for name in a if name in b):
        ours, theirs = a[name].detach(), b[name].detach()
        if ours.shape != theirs.shape:
            shapes.append((name, tuple(ours.shape), tuple(theirs.shape)))
            continue
        count += 1
        difference = _difference(name, ours, theirs, config.head_sizes[2], tolerance)
        if difference is not None:
            tensors.append(difference)
        rounded += ours.dtype != theirs.dtype and difference is None
    return WeightsDiff(count, missing, extra, tuple(shapes), tuple(tensors), rounded)


def _difference(name: str, ours: Tensor, theirs: Tensor, head: int, tolerance: float) -> TensorDiff | None:
    """The difference of two tensors; None if they are equal after rounding to the coarser of their dtypes."""
    if ours.dtype != theirs.dtype and ours.is_floating_point() and theirs.is_floating_point():
        coarse = max(ours.dtype, theirs.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        ours, theirs = ours.to(coarse), theirs.to(coarse)
    if torch.equal(ours, theirs):
        return None
    x, y = ours.double().cpu(), theirs.double().cpu()
    largest, scale = float((x - y).abs().max()), float(x.abs().max()) or 1.0
    if largest <= tolerance * scale:
        return None
    return TensorDiff(name, largest, largest / scale, next(_hints(x, y, head), ""))


def _hints(x: Tensor, y: Tensor, head: int) -> Iterator[str]:
    """How y is a reordering of x, if it is."""
    if x.dim() == 0 or not _same_values(x.flatten(), y.flatten()):
        return
    if x.dim() == 2 and x.shape[0] == x.shape[1] and torch.equal(x.t(), y):
        yield "transposed"
    if len(x) % head == 0 and head % 2 == 0:
        heads = x.unflatten(0, (-1, head))
        halves = torch.arange(head).reshape(2, -1)
        for text, order in (
            ("the halves of each head are swapped", halves.flip(0).flatten()),
            ("the rows of each head are in pairs of neighbors instead of halves", halves.t().flatten()),
            ("the rows of each head are in halves instead of pairs", torch.arange(head).reshape(-1, 2).t().flatten()),
        ):
            if torch.equal(heads[:, order].flatten(0, 1), y):
                yield text
        if _same_rows(heads.flatten(1), y.unflatten(0, (-1, head)).flatten(1)):
            yield "the heads are in another order"
    if x.dim() == 2 and _same_rows(x, y):
        yield "the rows are in another order"
    if x.dim() == 2 and _same_rows(x.t(), y.t()):
        yield "the columns are in another order"
    yield "the same values in another order"


def _same_values(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.sort().values, y.sort().values)


def _same_rows(x: Tensor, y: Tensor) -> bool:
    """Whether y has the rows of x in another order: sorted by the same projection, they are equal."""
    key = torch.linspace(1.0, 2.0, x.shape[1], dtype=x.dtype).sqrt()
    return torch.equal(x[(x @ key).argsort()], y[(y @ key).argsort()])
