"""The x-rays of a run: taken between the steps on a batch of their own, so that training does not notice them."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from normscope.diagnostics.collect.parameters import ParameterTracker
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.findings import find
from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import TensorStats, XrayRecord
from normscope.diagnostics.record_json import load_record, record_text
from normscope.errors import FileError
from normscope.models.gpt import GPT
from normscope.storage.safe_folder import OwnFolder

_LAYERS = re.compile(r"embedding|blocks\.\d+|final_norm")


def look(model: GPT, inputs: Tensor, targets: Tensor, *, label: str = "", done: int | None = None) -> XrayRecord:
    """An x-ray of the way forward and back on a batch, of a model that has so many steps behind it.

    The model is left as it was: its mode, its weights, and its gradients, which must be empty. No number is drawn.

    >>> import torch
    >>> from normscope.models.presets import nanochat
    >>> model = GPT(nanochat(vocab_size=9, context=4, depth=2, width=8, heads=2))
    >>> tokens = torch.randint(9, (2, 4))
    >>> [layer["name"] for layer in layer_signal(look(model, tokens, tokens))]
    ['embedding', 'blocks.0', 'blocks.1', 'final_norm']
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        with Xray(model.eval(), label=label) as xray:
            model.loss(inputs, targets).backward()
    finally:
        for module, training in modes:  # of parts one by one: some may be in eval mode by themselves
            module.training = training
        model.zero_grad(set_to_none=True)
    return dataclasses.replace(xray.record, steps_before=done)


def layer_signal(record: XrayRecord) -> list[dict[str, Any]]:
    """For the report: the root mean square of what each layer of a GPT gives, and of the loss's gradient there."""
    return [
        {"name": module.name, "rms": _rms(module.output), "gradient_rms": _rms(module.gradient)}
        for module in record.ran
        if _LAYERS.fullmatch(module.name)
    ]


def _rms(signal: TensorStats | None) -> float:
    return 0.0 if signal is None else math.nan if signal.non_finite else signal.rms


class StepWatch:
    """Watches one step of training: by how much it changes each weight. The step gives the same bits as unwatched.

    Args:
        model: the model that is trained.
    """

    def __init__(self, model: GPT) -> None:
        # In a scene where nobody looks: gradients are seen by the x-rays themselves, and here only the weights are.
        self._model, self._weights = model, ParameterTracker(model, XraySession())

    def __enter__(self) -> Self:
        self._weights.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._weights.stop()

    def added_to(self, record: XrayRecord) -> XrayRecord:
        """The record, with the step that led there."""
        parts = dict(self._model.named_modules())
        modules = []
        for module in record.modules:
            seen = {p.name: p for p in self._weights.of(parts[module.name], module.name)} if module.parameters else {}
            weights = [
                dataclasses.replace(
                    p,
                    update_ratio=seen[p.name].update_ratio,
                    update_rms=seen[p.name].update_rms,
                    in_optimizer=seen[p.name].in_optimizer,
                )
                for p in module.parameters
            ]
            modules.append(dataclasses.replace(module, parameters=tuple(weights)))
        return dataclasses.replace(record, modules=tuple(modules), steps=tuple(self._weights.steps))


class Looks:
    """The folder `xray` of a run, with a file such as step-000100.json for each x-ray.

    Args:
        folder: where they are; made when the first one is kept.
    """

    def __init__(self, folder: Path | OwnFolder) -> None:
        self._inside = folder if isinstance(folder, OwnFolder) else OwnFolder(folder)

    @property
    def folder(self) -> Path:
        return self._inside.path

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.json"

    def steps(self) -> list[int]:
        """The steps of which there is one, in order."""
        names = [re.fullmatch(r"step-([0-9]{6,15})\.json", name) for name in self._inside.names()]
        return sorted(int(name[1]) for name in names if name)

    def keep(self, step: int, record: XrayRecord, told: set[str]) -> Iterator[str]:
        """Save an x-ray; gives a notice for each kind of fault that is not in `told` yet, and adds it there."""
        self._inside.make()
        self._inside.write(self.path(step).name, record_text(record).encode())
        kinds: dict[str, list[Finding]] = {}
        for finding in _faults(record):
            kinds.setdefault(finding.name, []).append(finding)
        for name, findings in kinds.items():
            if name not in told:
                told.add(name)
                more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
                yield f"x-ray: {findings[0].title}{more}\nsee normscope xray {self.path(step)}"

    def faults_before(self, step: int) -> set[str]:
        """The kinds of faults that x-rays before a step have found, which have been told already."""
        found = set()
        for earlier in self.steps():
            if earlier < step and self._inside.has(self.path(earlier).name):  # refuses a link
                try:
                    found |= {finding.name for finding in _faults(load_record(self.path(earlier)))}
                except FileError:  # then it is told once more
                    continue
        return found

    def forget_after(self, step: int) -> None:
        """Drop those after a step from which a run goes on: they will be taken again."""
        for later in self.steps():
            if later > step:
                self._inside.remove(self.path(later).name)


def _faults(record: XrayRecord) -> list[Finding]:
    return [finding for finding in find(record) if finding.severity in ("error", "warning")]
