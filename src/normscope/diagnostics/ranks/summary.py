"""What a rank tells the others: a summary, and sections of details that are read only where ranks differ."""

import hashlib
import json
from dataclasses import dataclass, field

from normscope.storage.json_files import StrictStruct

SECTIONS = ("shapes", "weights", "shards", "buffers", "running-statistics", "gradients", "modes")


class OptimizerSummary(StrictStruct):
    """An optimizer that made steps: its class, its steps in the x-ray and before, the hyperparameters of each group."""

    name: str
    steps: int
    number: int | None
    groups: list[dict[str, str]]


class SectionSummary(StrictStruct):
    """What two ranks compare of a section: equal digests, equal contents.

    Only sections with the same part are compared: the shards of other ranks differ.
    """

    digest: str
    size: int
    part: str = ""


class RankSummary(StrictStruct):
    """What one rank did during the x-ray. Fields are named as in `RankRecord`."""

    rank: int
    label: str
    model: str
    batches: int
    backward_passes: int
    training: bool | None
    loss: str
    inputs: list[str]
    targets: list[str]
    passes_outside: int
    passes_unsynced: int
    trail: list[str]
    """Checksums of a sample of all weights: at the start, then before and after each step."""
    step_gradients: list[str]
    """For each step, a checksum of the names of its parameters, and one of a sample of their gradients."""
    optimizers: list[OptimizerSummary]
    sections: dict[str, SectionSummary]

    @property
    def steps(self) -> int:
        return sum(optimizer.steps for optimizer in self.optimizers)


Section = dict[str, str]
"""Names of tensors, modules or parameters, and what is compared of each: a `Check` as text, a shape, a mode."""


@dataclass
class Published:
    """A summary and its sections."""

    summary: RankSummary
    sections: dict[str, Section] = field(default_factory=dict)


def summarize(section: Section, part: str = "") -> SectionSummary:
    """Summarize a section. Of a tensor, only the checksum counts."""
    keys = json.dumps({name: value.partition(" ")[0] for name, value in section.items()}, sort_keys=True)
    digest = hashlib.blake2b(keys.encode(), digest_size=8).hexdigest()
    return SectionSummary(digest=digest, size=len(section), part=part)
