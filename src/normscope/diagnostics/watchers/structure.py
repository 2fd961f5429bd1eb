"""Watch which outputs are returned, how dropout is used, and in what alike modules differ."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.module_names import join_names, name_pattern
from normscope.diagnostics.stats.structure import DropoutUse, PeerDifference, StructureRecord
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.function_kinds import DROPOUTS, SAME_VALUES
from normscope.tracing.module_trials import own_attributes
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "log_softmax"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
_LARGE = 0.8
"""Dropout of at least this part is recorded; usual values are 0.1 to 0.5."""

_MIN_ALIKE = 3
_MAX_ATTRIBUTES = 400
_MAX_MASK = 1 << 16
_MAX_DIFFERENCES = 20
_NUMBERED = re.compile(
    r"ind(e)?x|(^|_)(id|idx|i|n|name|number|level|stage|depth)$|first|last|final|block_type|layer_type"
)
_MASKS = re.compile(r"mask|tril|causal|^bias$")


class StructureWatcher(Watcher):
    """Follows dropout to the loss, and compares alike modules at the end."""

    functions = tuple(
        dict.fromkeys(
            (*DROPOUTS, *_LOSSES, *("view", "reshape", "flatten", "transpose", "permute", "squeeze", "float"))
        )
    )

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._returned: dict[str, None] = {}
        self._dropped = TensorTable[str]()
        self._dropouts: dict[str, DropoutUse] = {}
        self._inputs: list[Tensor] = []
        self._outermost: CallFrame | None = None

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if not outer:
            self._outermost = frame
            self._inputs = list(tensors_in((args, kwargs)))

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        is_outermost = frame is self._outermost
        if is_outermost or isinstance(output, tuple | dict):
            for tensor in tensors_in(output, 3):
                if tensor.is_floating_point():
                    self._returned.update(dict.fromkeys(self.session.registry.of(tensor).producers))
        if is_outermost:
            self._inputs, self._outermost = [], None

    def call_function(self, call: FunctionCall, result: Any) -> None:
        given = call.args[0] if call.args else call.kwargs.get("input")
        if not isinstance(given, Tensor):
            return
        if call.name in DROPOUTS:
            self._see_dropout(call, given, result)
        elif call.name in SAME_VALUES:
            name = self._dropped.get(given) if len(self._dropped) else None
            if name is not None and isinstance(result, Tensor):
                self._dropped.put(result, name)
        elif call.name != "log_softmax" or not call.frames:  # inside, log_softmax may be a head of the model
            name = self._dropped.get(given) if len(self._dropped) else None
            if name is not None:
                used = self._dropouts.get(name) or DropoutUse(name, 0.0)
                self._dropouts[name] = DropoutUse(name, used.p, call.name, used.source or source_line() or "")

    def _see_dropout(self, call: FunctionCall, given: Tensor, result: Any) -> None:
        p = call.args[1] if len(call.args) > 1 else call.kwargs.get("p", 0.5)
        is_active = call.args[2] if len(call.args) > 2 else call.kwargs.get("training", True)
        if not is_active or not p or not call.frames or not isinstance(result, Tensor):
            return
        name = call.frames[-1].accumulator.name
        if result is not given:
            self._dropped.put(result, name)
        if p >= _LARGE and not any(given is x for x in self._inputs):
            used = self._dropouts.get(name)
            self._dropouts[name] = DropoutUse(name, float(p), used.loss if used else "", source_line() or "")

    def stop(self) -> None:
        self._dropped.clear()
        self._inputs, self._outermost = [], None

    def finish(self) -> dict[str, Any]:
        differences = tuple(_differences(self.watched.names))[:_MAX_DIFFERENCES]
        found = StructureRecord(tuple(self._returned), differences, tuple(self._dropouts.values()))
        return {"structure": found}


def _differences(names: dict[nn.Module, str]) -> Iterator[PeerDifference]:
    groups: dict[tuple[Any, ...], list[tuple[str, nn.Module]]] = defaultdict(list)
    for module, name in names.items():
        if name.rpartition(".")[2].isdigit() and any(True for _ in module.children()):
            shapes = tuple((own, tuple(p.shape)) for own, p in module.named_parameters())
            groups[name_pattern(name), type(module), shapes].append((name, module))
    for group in groups.values():
        if len(group) < _MIN_ALIKE or len({name.rpartition(".")[0] for name, _ in group}) > 1:
            continue
        described = [dict(_describe(module)) for _, module in group]
        for key in described[0]:
            values = [found.get(key) for found in described]
            odd = [i for i, value in enumerate(values) if values.count(value) == 1]
            if len(odd) == 1 and len(set(values)) == 2:
                i = odd[0]
                yield PeerDifference(
                    module=group[i][0],
                    attribute=key[1],
                    value=str(values[i])[:60],
                    others=str(values[i - 1])[:60],
                    peers=len(group) - 1,
                    is_inside=0 < i < len(group) - 1,
                    is_class=key[0] == "class",
                )


def _describe(module: nn.Module) -> Iterator[tuple[tuple[str, str], str]]:
    """The plain attributes of a module and of its submodules, and the classes of these."""
    count = 0
    for name, inner in module.named_modules():
        if name:
            yield ("class", name), type(inner).__name__
        for own, value in own_attributes(inner).items():
            if isinstance(value, bool | int | float | str) and not own.startswith("_") and not _NUMBERED.search(own):
                yield ("value", join_names(name, own)), repr(value)
                count += 1
        for own, buffer in inner._buffers.items():
            if buffer is not None and _MASKS.search(own) and buffer.numel() <= _MAX_MASK and not buffer.is_meta:
                content = buffer.detach().cpu().to(torch.float32).numpy().tobytes()
                yield ("value", join_names(name, own)), hashlib.sha256(content).hexdigest()[:8]
        if count > _MAX_ATTRIBUTES:
            return
