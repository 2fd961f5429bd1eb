"""Bytes of tensors on one rank."""

from dataclasses import dataclass

from normscope.planning.activations import Kept
from normscope.planning.layout import Layout, Weight


@dataclass(frozen=True)
class RankMemory:
    """Bytes of tensors on one rank.

    Args:
        weights: Its parameters, and buffers such as rotary tables.
        gradients: Their gradients.
        optimizer: Its part of the optimizer state.
        copies, activations: What the forward pass keeps for the backward pass; see `Kept`. fsdp does not divide copies.
        gathered: fsdp: weights and gradients of the largest group of parameters and of the root, which are whole while
            the rank computes with them.
        updates: fsdp: updates of Muon that are whole at a time, after the backward pass.
    """

    weights: int
    gradients: int
    optimizer: int
    copies: int
    activations: int
    gathered: int
    updates: int

    @property
    def total(self) -> int:
        """The most that exists at a time."""
        kept = self.copies + self.activations + self.gathered
        return self.weights + self.gradients + self.optimizer + max(kept, self.updates)


def rank_memory(layout: Layout, rank: int, kept: Kept) -> RankMemory:
    """Bytes of tensors on a rank whose forward pass keeps this."""
    parts = (_ddp if layout.parallel == "ddp" else _fsdp)(layout)
    optimizer = sum(_state_bytes(layout, weight, rank) for weight in layout.trained)
    return RankMemory(**parts, optimizer=optimizer, copies=kept.copies, activations=kept.activations)


def fullest_rank(layout: Layout) -> int:
    """The rank that needs the most memory: whole parameters cannot be divided evenly."""
    found = [0] * layout.ranks
    for weight in layout.trained:
        assert weight.owner is not None
        if _is_dealt(layout, weight):
            found[weight.owner] += _state_bytes(layout, weight, weight.owner)
    return max(range(layout.ranks), key=found.__getitem__)  # AdamW's rows are fewer only on the last ranks


def _is_dealt(layout: Layout, weight: Weight) -> bool:
    """Whether one rank keeps all of its optimizer state; FSDP2 gives AdamW the rows of each rank instead."""
    return weight.is_muon or layout.parallel == "ddp"


def _state_bytes(layout: Layout, weight: Weight, rank: int) -> int:
    """Bytes of optimizer state on a rank: Muon has one number per element, AdamW two, and counts its steps."""
    if _is_dealt(layout, weight):
        own = weight.nbytes if weight.owner == rank else 0
    else:
        own = weight.rows_bytes(layout.ranks, rank)
    counter = weight.itemsize if own or not _is_dealt(layout, weight) else 0
    return own if weight.is_muon else 2 * own + counter


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
