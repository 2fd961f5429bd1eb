"""What each rank keeps of a model: whole parameters or rows of them, and the matrices that it updates."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from normscope.models.gpt import GPT
from normscope.runtime.ranks import Ranks
from normscope.training.config import ParallelName, TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup, muon_cost
from normscope.training.running_statistics import running_statistics


@dataclass(frozen=True)
class Weight:
    """A parameter of a model, without its values.

    Args:
        shape: Its size.
        itemsize: Bytes per element.
        owner: The rank that updates it; None if it is frozen.
        is_muon: Whether Muon updates it, which needs all of its rows.
        muon_cost: Multiplications of Muon's update.
    """

    shape: tuple[int, ...]
    itemsize: int
    owner: int | None
    is_muon: bool
    muon_cost: float

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def is_trained(self) -> bool:
        return self.owner is not None

    def part_bytes(self, ranks: int) -> int:
        """Bytes of the rows of one rank, rounded up: all ranks store equally many, some of them as padding."""
        return -(-self.shape[0] // ranks) * self.nbytes // self.shape[0]

    def rows_bytes(self, ranks: int, rank: int) -> int:
        """Bytes of the rows of one rank, without padding."""
        rows = -(-self.shape[0] // ranks)
        return max(0, min(rows, self.shape[0] - rank * rows)) * self.nbytes // self.shape[0]


@dataclass(frozen=True)
class Layout:
    """A model that ranks share.

    Args:
        parallel: ddp (each rank has the whole model) or fsdp (each has rows of every parameter).
        ranks: Number of ranks.
        root: Parameters outside of the blocks, which FSDP2 gathers once per forward and backward pass.
        blocks: Parameters of each block, which FSDP2 gathers twice.
        buffers: Bytes of rotary tables and running statistics, of which each rank has all.
        statistics: Bytes of the running statistics.
    """

    parallel: ParallelName
    ranks: int
    root: tuple[Weight, ...]
    blocks: tuple[tuple[Weight, ...], ...]
    buffers: int
    statistics: int

    @property
    def weights(self) -> Iterator[Weight]:
        for group in self.groups:
            yield from group

    @property
    def groups(self) -> tuple[tuple[Weight, ...], ...]:
        """What FSDP2 gathers at a time."""
        return (self.root, *self.blocks)

    @property
    def trained(self) -> list[Weight]:
        return [weight for weight in self.weights if weight.is_trained]

    @property
    def matrices(self) -> list[list[Weight]]:
        """Muon's matrices by shape, up to transposition: those of a shape are updated together."""
        groups: dict[tuple[int, ...], list[Weight]] = {}
        for weight in self.weights:
            if weight.is_muon:
                groups.setdefault(tuple(sorted(weight.shape)), []).append(weight)
        return list(groups.values())

    def gathered_bytes(self, weights: Iterable[Weight]) -> int:
        """Bytes of the parts of all ranks, with padding."""
        return self.ranks * sum(weight.part_bytes(self.ranks) for weight in weights)


def share_model(model: GPT, train: TrainConfig, parallel: ParallelName, ranks: int) -> Layout:
    """Divide a model among ranks as training does. The model may be on the meta device."""
    optimizer = OptimizerGroup(model, train, Ranks(0, ranks))
    owners, state = optimizer.owners, optimizer.expected_tensors()
    weights: Mapping[str, Weight] = {
        name: Weight(
            shape=tuple(parameter.shape),
            itemsize=parameter.itemsize,
            owner=owners.get(name),
            is_muon=f"{name}:momentum" in state,
            muon_cost=muon_cost(parameter, train.ns_steps) if f"{name}:momentum" in state else 0.0,
        )
        for name, parameter in model.named_parameters()
    }
    in_blocks = [
        tuple(weights[f"blocks.{i}.{name}"] for name, _ in block.named_parameters())
        for i, block in enumerate(model.blocks)
    ]
    statistics = sum(buffer.nbytes for buffer in running_statistics(model).values())
    return Layout(
        parallel=parallel,
        ranks=ranks,
        root=tuple(weight for name, weight in weights.items() if not name.startswith("blocks.")),
        blocks=tuple(in_blocks),
        buffers=4 * model.config.buffer_count() + statistics,
        statistics=statistics,
    )
