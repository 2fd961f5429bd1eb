"""Bytes of tensors on one rank."""

from dataclasses import dataclass

from normscope.planning.layout import Layout, Weight


@dataclass(frozen=True)
class RankMemory:
    """Bytes of tensors on one rank.

    Args:
        weights: Its parameters, and buffers such as rotary tables.
        gradients: Their gradients.
        optimizer: Its part of the optimizer state.
        activations: What the forward pass keeps for the backward pass.
        gathered: fsdp: weights and gradients of the largest group of parameters and of the root, which are whole while
            the rank computes with them.
        updates: fsdp: updates of Muon that are whole at a time, after the backward pass.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    gathered: int
    updates: int

    @property
    def total(self) -> int:
        """The most that exists at a time."""
        return self.weights + self.gradients + self.optimizer + max(self.activations + self.gathered, self.updates)


def rank_memory(layout: Layout, rank: int, activations: int) -> RankMemory:
    """Bytes of tensors on a rank, with activations of this size."""
    parts = (_ddp if layout.parallel == "ddp" else _fsdp)(layout)
    return RankMemory(**parts, optimizer=optimizer_bytes(layout, rank), activations=activations)


def largest_memory(layout: Layout, activations: int) -> RankMemory:
    """Bytes of tensors on the rank that needs the most: the optimizer state is divided by whole parameters."""
    return rank_memory(layout, max(range(layout.ranks), key=_optimizer_by_rank(layout).__getitem__), activations)


def optimizer_bytes(layout: Layout, rank: int) -> int:
    """Bytes of the optimizer state of a rank."""
    return _optimizer_by_rank(layout)[rank]


def _optimizer_by_rank(layout: Layout) -> list[int]:
    """Muon has one number for each of its own, AdamW two; FSDP2 gives AdamW the rows of each rank instead."""
    found = [0] * layout.ranks
    for weight in layout.trained:
        assert weight.owner is not None
        if weight.is_muon or layout.parallel == "ddp":
            found[weight.owner] += _state_bytes(weight, weight.nbytes)
            continue
        for rank in range(layout.ranks):
            found[rank] += _state_bytes(weight, weight.rows_bytes(layout.ranks, rank))
    return found


def _state_bytes(weight: Weight, nbytes: int) -> int:
    return nbytes if weight.is_muon else 2 * nbytes + weight.itemsize  # AdamW counts its steps


def _ddp(layout: Layout) -> dict[str, int]:
    return {
        "weights": layout.buffers + sum(weight.nbytes for weight in layout.weights),
        "gradients": sum(weight.nbytes for weight in layout.trained),
        "gathered": 0,
        "updates": 0,
    }


def _fsdp(layout: Layout) -> dict[str, int]:
    ranks = layout.ranks
    whole = [
        layout.gathered_bytes(group) + layout.gathered_bytes(one for one in group if one.is_trained)
        for group in layout.groups
    ]
    root, *blocks = whole
    chunks = (of_shape[i : i + ranks] for of_shape in layout.matrices for i in range(0, len(of_shape), ranks))
    return {
        "weights": layout.buffers + sum(weight.part_bytes(ranks) for weight in layout.weights),
        "gradients": sum(weight.part_bytes(ranks) for weight in layout.trained),
        "gathered": root + max(blocks, default=0),
        "updates": max((sum(weight.nbytes for weight in chunk) for chunk in chunks), default=0),
    }
