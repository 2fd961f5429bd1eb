"""What the ranks send to each other in a training step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from normscope.planning.layout import Layout, Weight
from normscope.training.parallel.dealing import BUCKET_BYTES

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast"]
Backend = Literal["gloo", "nccl"]
Phase = Literal["forward", "backward", "update"]
_DDP_BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Message:
    """Collective operations of one kind in a training step.

    Args:
        what: What they carry.
        operation: What the ranks do with it.
        phase: When.
        nbytes: Bytes of the whole tensors, before they are divided among ranks.
        count: Number of operations.
    """

    what: str
    operation: Operation
    phase: Phase
    nbytes: int
    count: int

    def sent(self, ranks: int, backend: Backend) -> float:
        """Bytes that a rank sends, as a mean over the ranks; it receives as many."""
        return sent_fraction(self.operation, ranks, backend) * self.nbytes


def sent_fraction(operation: Operation, ranks: int, backend: Backend) -> float:
    """The part of a tensor that each rank sends, as a mean.

    - all-reduce, a ring: the parts are added up along it (n - 1 parts of n), and sent around again.
    - all-gather, a ring: each part visits the other ranks.
    - reduce-scatter: half an all-reduce in NCCL. gloo reduces everything to everybody, and throws most of it away.
    - broadcast: each rank but one receives all of it, along a tree (gloo) or a ring (NCCL).

    >>> sent_fraction("all-reduce", 4, "nccl"), sent_fraction("reduce-scatter", 4, "nccl")
    (1.5, 0.75)
    """
    once = (ranks - 1) / ranks
    is_double = operation == "all-reduce" or (operation == "reduce-scatter" and backend == "gloo")
    return 2 * once if is_double else once


def step_messages(layout: Layout, micro_batches: int = 1) -> list[Message]:
    """What the ranks exchange in one optimizer step, and nothing if there is one rank."""
    if layout.ranks == 1:
        return []
    found = _ddp(layout) if layout.parallel == "ddp" else _fsdp(layout, micro_batches)
    sums = 3 if layout.parallel == "fsdp" else 2  # the loss, whether to stop, and the gradient norm
    found = chain(found, [Message("sums", "all-reduce", "update", 8 * sums, sums)])
    if layout.statistics:
        found = chain(found, [Message("running statistics", "broadcast", "update", layout.statistics, 1)])
    return [message for message in found if message.nbytes]


def _ddp(layout: Layout) -> Iterator[Message]:
    gradients = sum(weight.nbytes for weight in layout.trained)
    yield Message("gradients", "all-reduce", "backward", gradients, 1 + gradients // _DDP_BUCKET)
    rest = [weight for weight in layout.trained if not weight.is_muon]
    count = sum(_broadcasts(weights) for weights in (*layout.matrices, rest))
    yield Message("updated parameters", "broadcast", "update", gradients, count)


def _fsdp(layout: Layout, micro_batches: int) -> Iterator[Message]:
    root, blocks = layout.gathered_bytes(layout.root), sum(map(layout.gathered_bytes, layout.blocks))
    depth = len(layout.blocks)
    yield Message("parameters", "all-gather", "forward", micro_batches * (root + blocks), micro_batches * (1 + depth))
    yield Message("parameters", "all-gather", "backward", micro_batches * blocks, micro_batches * depth)
    reduced = [layout.gathered_bytes(weight for weight in group if weight.is_trained) for group in layout.groups]
    count = micro_batches * sum(size > 0 for size in reduced)
    yield Message("gradients", "reduce-scatter", "backward", micro_batches * sum(reduced), count)
    matrices = [weight for of_shape in layout.matrices for weight in of_shape]
    yield Message("whole gradients for Muon", "all-gather", "update", layout.gathered_bytes(matrices), len(matrices))
    ranks = layout.ranks
    chunks = (of_shape[i : i + ranks] for of_shape in layout.matrices for i in range(0, len(of_shape), ranks))
    updates = sum(weight.nbytes for weight in matrices)
    yield Message("updates of Muon", "broadcast", "update", updates, sum(map(_broadcasts, chunks)))


def _broadcasts(weights: Sequence[Weight]) -> int:
    """Messages of `Broadcasts`: large tensors one by one, small ones of the same owner together."""
    small: dict[int | None, int] = {}
    for weight in weights:
        if weight.nbytes < BUCKET_BYTES:
            small[weight.owner] = small.get(weight.owner, 0) + weight.nbytes
    large = sum(weight.nbytes >= BUCKET_BYTES for weight in weights)
    return large + sum(-(-size // BUCKET_BYTES) for size in small.values())


def sent_bytes(messages: Iterable[Message], ranks: int, backend: Backend) -> float:
    """Bytes that a rank sends, as a mean over the ranks."""
    return sum(message.sent(ranks, backend) for message in messages)
