"""X-ray snapshots of a run, taken between steps on a fixed batch without affecting the training."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from normscope.diagnostics.collect.parameters import ParameterTracker
from normscope.diagnostics.collect.products import UnregisteredParameters
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.findings import find
from normscope.diagnostics.findings.finding import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import ParameterRecord, StepRecord, XrayRecord
from normscope.diagnostics.record_json import load_record, record_text
from normscope.diagnostics.stats.tensors import TensorStats
from normscope.errors import FileError
from normscope.models.gpt import GPT
from normscope.storage.safe_folder import SafeFolder

_LAYERS = re.compile(r"embedding|blocks\.\d+|final_norm")
_UPDATE_FIELDS = ("update_ratio", "update_rms", "in_optimizer")


def take_xray(
    model: GPT,
    inputs: Tensor,
    targets: Tensor,
    positions: Tensor | None = None,
    *,
    label: str = "",
    step: int | None = None,
    only_layers: bool = False,
) -> XrayRecord:
    """X-ray a forward and backward pass on one batch.

    Leaves modes, weights, gradients (which must be empty) and the RNG unchanged.

    Args:
        model: The model.
        inputs, targets, positions: The batch; positions if rows hold several documents.
        label: Title of the x-ray.
        step: Number of steps the model was trained for.
        only_layers: Record only what `layer_signal` needs, in a fraction of the time.

    >>> import torch
    >>> from normscope.models.presets import nanochat
    >>> model = GPT(nanochat(vocab_size=9, context=4, depth=2, width=8, heads=2))
    >>> tokens = torch.randint(9, (2, 4))
    >>> [layer["name"] for layer in layer_signal(take_xray(model, tokens, tokens))]
    ['embedding', 'blocks.0', 'blocks.1', 'final_norm']
    """
    batch = (inputs, targets) if positions is None else (inputs, targets, positions)
    modes = [(module, module.training) for module in model.modules()]
    layers = [name for name, _ in model.named_modules() if _LAYERS.fullmatch(name)]
    try:
        with Xray(model.eval(), label=label, submodules=layers if only_layers else True) as xray:
            model.loss(*batch).backward()
    finally:
        for module, training in modes:  # one by one: some modules may have been in eval mode
            module.training = training
        model.zero_grad(set_to_none=True)
    return dataclasses.replace(xray.record, steps_before=step)


def layer_signal(record: XrayRecord) -> list[dict[str, Any]]:
    """RMS of the output of each layer of a GPT, and of its gradient, for the report."""
    return [
        {"name": module.name, "rms": _rms(module.output), "grad_rms": _rms(module.gradient)}
        for module in record.ran
        if _LAYERS.fullmatch(module.name)
    ]


def _rms(signal: TensorStats | None) -> float:
    return 0.0 if signal is None else math.nan if signal.non_finite else signal.rms


class UpdateTracker:
    """Context manager that measures how much an optimizer step changes each weight, without changing its bits.

    Args:
        model: The model being trained.
    """

    def __init__(self, model: GPT) -> None:
        # An empty session: gradients are measured by the x-ray, here only the weights.
        self._model, self._weights = model, ParameterTracker(model, XraySession(), UnregisteredParameters(model))

    def __enter__(self) -> Self:
        self._weights.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._weights.stop()

    def add_to(self, record: XrayRecord) -> XrayRecord:
        """Return the record with the measured updates."""
        parts = dict(self._model.named_modules())
        parameters = {m.name: self._weights.of(parts[m.name], m.name) for m in record.modules if m.parameters}
        return _with_updates(record, parameters, self._weights.steps)


def _with_updates(
    record: XrayRecord, parameters: Mapping[str, Iterable[ParameterRecord]], steps: Iterable[StepRecord]
) -> XrayRecord:
    """Return the record with the updates of these parameters, which are grouped by module name."""
    modules = []
    for module in record.modules:
        measured = parameters.get(module.name, ())
        updates = {p.name: {field: getattr(p, field) for field in _UPDATE_FIELDS} for p in measured}
        weights = tuple(dataclasses.replace(p, **updates.get(p.name, {})) for p in module.parameters)
        modules.append(dataclasses.replace(module, parameters=weights))
    return dataclasses.replace(record, modules=tuple(modules), steps=tuple(steps))


class XraySnapshots:
    """The folder `xray` of a run, with one file per snapshot, such as step-000100.json.

    Args:
        folder: The folder; created with the first snapshot.
    """

    def __init__(self, folder: Path | SafeFolder) -> None:
        self._folder = SafeFolder.of(folder)

    @property
    def folder(self) -> Path:
        return self._folder.path

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.json"

    def steps(self) -> list[int]:
        """Steps with a snapshot, in order."""
        names = [re.fullmatch(r"step-([0-9]{6,15})\.json", name) for name in self._folder.names()]
        return sorted(int(name[1]) for name in names if name)

    def save(self, step: int, record: XrayRecord) -> None:
        """Save a snapshot."""
        self._folder.create()
        self._folder.write(self.path(step).name, record_text(record).encode())

    def with_saved_updates(self, step: int, record: XrayRecord) -> XrayRecord:
        """Return the record of a resumed run with the updates in the snapshot that was saved before the run stopped."""
        if not self._folder.has(self.path(step).name):
            return record
        try:
            saved = load_record(self.path(step))
        except FileError:
            return record
        return _with_updates(record, {module.name: module.parameters for module in saved.modules}, saved.steps)

    def new_problems(self, step: int, record: XrayRecord, reported: set[str]) -> Iterator[str]:
        """Yield a notice for each kind of problem not yet in `reported`, and add it there."""
        kinds: dict[str, list[Finding]] = {}
        for finding in _problems(record):
            kinds.setdefault(finding.name, []).append(finding)
        for name, findings in kinds.items():
            if name not in reported:
                reported.add(name)
                more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
                yield f"x-ray: {findings[0].title}{more}\nsee normscope xray {self.path(step)}"

    def findings_before(self, step: int) -> set[str]:
        """Kinds of problems found by snapshots before a step, which were already reported."""
        found = set()
        for earlier in self.steps():
            if earlier < step and self._folder.has(self.path(earlier).name):  # raises on a link
                try:
                    found |= {finding.name for finding in _problems(load_record(self.path(earlier)))}
                except FileError:  # report it again
                    continue
        return found

    def drop_after(self, step: int) -> None:
        """Delete the snapshots after a step; a resumed run takes them again."""
        for later in self.steps():
            if later > step:
                self._folder.remove(self.path(later).name)


def _problems(record: XrayRecord) -> list[Finding]:
    return [finding for finding in find(record) if finding.severity in ("error", "warning")]
