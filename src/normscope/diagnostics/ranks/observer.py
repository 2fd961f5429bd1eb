"""Observe this rank during an x-ray, and compare it with the others at the end."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.collectives import has_other_ranks
from normscope.diagnostics.collect.parameter_values import sample_values
from normscope.diagnostics.collect.parameters import ParameterTracker, parameters_of, step_number
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.wrappers import ParallelWrapper
from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.ranks.batches import BatchChecksums
from normscope.diagnostics.ranks.checksums import check_tensor, checksum
from normscope.diagnostics.ranks.compare import compare_ranks
from normscope.diagnostics.ranks.exchange import MAX_CHARACTERS, RankExchange
from normscope.diagnostics.ranks.summary import OptimizerSummary, Published, RankSummary, Section, summarize
from normscope.diagnostics.stats.ranks import RanksRecord, list_ranks
from normscope.storage.json_files import JsonSource
from normscope.tracing.module_kinds import is_norm
from normscope.tracing.sharded import is_dtensor, local_part, shard_name

_MAX_MOMENTS = 130
"""Moments of the trail: the start, before and after each of 64 steps, the end."""

_MAX_RANKS = 64
"""Ranks that are compared: each one reads what all others have published."""


@dataclass(frozen=True)
class RankActivity:
    """What a rank has done, as its own record says. Fields are named as in `RankRecord` and `XrayRecord`."""

    label: str
    model: str
    batches: int
    backward_passes: int
    training: bool | None
    loss: float | None
    modes: Section


class RankObserver:
    """What this rank does that the others should do too. Nothing happens in a process without other ranks.

    Args:
        session, tracker, wrapper: those of the x-ray.
    """

    def __init__(self, session: XraySession, tracker: ParameterTracker, wrapper: ParallelWrapper) -> None:
        self._session, self._tracker, self._wrapper = session, tracker, wrapper
        self._exchange: RankExchange | None = None
        self._trail: list[str] = []
        self._step_gradients: list[str] = []
        self._optimizers: dict[int, OptimizerSummary] = {}
        self._last_gradients: Section = {}

    def start(self) -> None:
        """Announce the x-ray to the other ranks. Call it after the tracker has started."""
        if has_other_ranks():
            self._session.guarded("the other ranks", self._start)

    def _start(self) -> None:
        self._exchange = RankExchange(dist.get_rank())
        self._session.batch_checksums = BatchChecksums()
        self._tracker.before_step.append(self._before_step)
        self._tracker.after_step.append(self._after_step)
        self._take_moment()

    def _take_moment(self) -> None:
        """Add a checksum of all weights, sampled, to the trail."""
        if len(self._trail) < _MAX_MOMENTS:
            samples = (sample_values(local_part(tracked.parameter)) for tracked in self._tracker.tracked.values())
            self._trail.append(_digest(checksum(sample) for sample in samples))

    def _before_step(self, optimizer: Optimizer) -> None:
        self._take_moment()
        self._last_gradients = self._gradients({id(parameter) for parameter in parameters_of(optimizer)})
        if len(self._step_gradients) < _MAX_MOMENTS // 2 - 1:
            checks = (check.partition(" ")[0] for check in self._last_gradients.values())
            self._step_gradients.append(f"{_digest(self._last_gradients)} {_digest(checks)}")

    def _after_step(self, optimizer: Optimizer) -> None:
        self._take_moment()
        known = self._optimizers.get(id(optimizer))
        self._optimizers[id(optimizer)] = OptimizerSummary(
            name=type(optimizer).__name__,
            steps=1 if known is None else known.steps + 1,
            number=step_number(optimizer),
            groups=[_hyperparameters(group) for group in optimizer.param_groups],
        )

    def _gradients(self, parameters: set[int] | None = None) -> Section:
        """Check samples of the gradients of replicated parameters: those of these ids, or all."""
        found, ignored = {}, self._wrapper.ignored
        for tracked in self._tracker.tracked.values():
            gradient = tracked.parameter.grad
            if gradient is None or gradient.is_sparse or is_dtensor(gradient) or tracked.name in ignored:
                continue
            if parameters is None or id(tracked.parameter) in parameters:
                found[tracked.name] = str(check_tensor(sample_values(gradient)))
        return found

    def finish(self, done: RankActivity) -> RanksRecord | None:
        """Compare the ranks, at the end of the x-ray. Return None if there are no others.

        Args:
            done: what this rank has done.
        """
        if self._exchange is None:
            return None
        return self._session.guarded("the other ranks", self._compare, self._exchange, done)

    def abandon(self) -> None:
        """End without a comparison, after an error in the block."""
        if self._exchange is not None:
            self._session.guarded("the other ranks", self._exchange.withdraw)

    def _compare(self, exchange: RankExchange, done: RankActivity) -> RanksRecord:
        try:
            own = self._published(done)
            texts = {name: json.dumps(section) for name, section in own.sections.items()}
            for name in [name for name, text in texts.items() if len(text) > MAX_CHARACTERS]:
                self._session.notice(f"the {name} of the ranks were not compared: there are too many")
                del texts[name], own.sections[name], own.summary.sections[name]
            exchange.publish({**texts, "summary": msgspec.json.encode(own.summary).decode()})
            expected = self._wrapper.ranks()
            if len(expected) > _MAX_RANKS:
                self._session.notice(f"the first {_MAX_RANKS} of {len(expected)} ranks were compared")
            found = exchange.wait_for(expected[:_MAX_RANKS])
            others = [other for rank, number in found.items() if (other := _read(exchange, rank, number, own))]
            exchange.wait_for_readers(found)
        finally:
            exchange.withdraw()
        record = compare_ranks(self._wrapper, expected[:_MAX_RANKS], own, others)
        if record.missing:
            ranks = list_ranks(record.missing)
            self._session.notice(f"not compared with {ranks}: no x-ray of this model was taken there at this time")
        return record

    def _published(self, done: RankActivity) -> Published:
        self._take_moment()
        tracked, ignored = self._tracker.tracked.values(), self._wrapper.ignored
        parameters = {entry.name: entry.parameter for entry in tracked if entry.name not in ignored}
        shards = {name: p for name, p in parameters.items() if is_dtensor(p) and shard_name(p)}
        whole = {name: p for name, p in parameters.items() if name not in shards}
        buffers, statistics = self._buffers()
        if not self._optimizers and done.backward_passes and self._wrapper.ends_reduced:
            self._last_gradients = self._gradients()
        sections: dict[str, Section] = {
            "shapes": {name: _shape(p) for name, p in parameters.items()},
            "weights": {name: str(check_tensor(local_part(p))) for name, p in whole.items()},
            "shards": {name: str(check_tensor(local_part(p))) for name, p in shards.items()},
            "buffers": buffers,
            "running-statistics": statistics,
            "gradients": self._last_gradients,
            "modes": done.modes,
        }
        part = _digest(f"{name} {shard_name(p)}" for name, p in shards.items()) if shards else ""
        data = self._session.batch_checksums or BatchChecksums()
        summary = RankSummary(
            rank=dist.get_rank(),
            label=done.label,
            model=done.model,
            batches=done.batches,
            backward_passes=done.backward_passes,
            training=done.training,
            loss="" if done.loss is None else repr(done.loss),
            inputs=data.inputs,
            targets=data.targets,
            passes_outside=self._wrapper.passes_outside,
            passes_unsynced=self._wrapper.passes_unsynced,
            trail=self._trail,
            step_gradients=self._step_gradients,
            optimizers=list(self._optimizers.values()),
            sections={name: summarize(own, part if name == "shards" else "") for name, own in sections.items()},
        )
        return Published(summary, sections)

    def _buffers(self) -> tuple[Section, Section]:
        """Check the buffers that a checkpoint has, and the running statistics of norms, which each batch changes.

        DDP overwrites those of the other ranks with those of the first one at the start of a pass.
        """
        buffers, statistics = Section(), Section()
        for prefix, module in self._wrapper.inner.named_modules() if not self._wrapper.broadcasts_buffers else ():
            for own, buffer in module.named_buffers(recurse=False):
                name, is_statistic = join_names(prefix, own), is_norm(module, prefix)
                is_counter = is_statistic and not buffer.is_floating_point()
                if own in module._non_persistent_buffers_set or name in self._wrapper.ignored or is_counter:
                    continue
                if not (buffer.is_meta or buffer.is_sparse or is_dtensor(buffer)):
                    (statistics if is_statistic else buffers)[name] = str(check_tensor(buffer))
        return buffers, statistics


def _read(exchange: RankExchange, rank: int, number: int, own: Published) -> Published | None:
    """Read what a rank has published, with those of its sections that differ; None if it is no x-ray of this model."""
    text = exchange.read(rank, number, "summary")
    if text is None:
        return None
    source = JsonSource(f"the x-ray of rank {rank}", fix="use the same version of normscope on all ranks")
    summary = source.parse(text.encode(), RankSummary)
    if (summary.label, summary.model) != (own.summary.label, own.summary.model):
        return None
    sections = {}
    for name, section in summary.sections.items():
        mine = own.summary.sections.get(name)
        if mine is None or mine.part != section.part:
            continue
        if mine.digest == section.digest:
            sections[name] = own.sections[name]
        elif (details := exchange.read(rank, number, name)) is not None:
            sections[name] = source.parse(details.encode(), dict[str, str], allow_any_text=True)
    return Published(summary, sections)


def _shape(parameter: Tensor) -> str:
    return f"{'x'.join(map(str, parameter.shape)) or 'scalar'}/{parameter.dtype}".replace("torch.", "")


def _hyperparameters(group: dict[str, Any]) -> dict[str, str]:
    """The settings of a parameter group: numbers, flags and names, and tuples of these."""
    found = {}
    for name, value in group.items():
        value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
        items = value if isinstance(value, tuple | list) else [value]
        if name != "params" and all(item is None or isinstance(item, int | float | str) for item in items):
            found[name] = repr(value)
    return found


def _digest(texts: Iterable[str]) -> str:
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=8).hexdigest()
