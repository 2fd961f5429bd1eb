"""Watch losses: what loss functions get, and what the scalars that backward starts from consist of."""

import math
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.diagnostics.record import LossRecord
from normscope.diagnostics.watchers.losses import objective_terms, value_origins
from normscope.diagnostics.watchers.losses.hand_written import HandWrittenLosses
from normscope.diagnostics.watchers.losses.measures import (
    LOSS_FUNCTIONS,
    arguments_of,
    classes_axis,
    input_of,
)
from normscope.diagnostics.watchers.losses.objective_terms import ObjectiveTerms
from normscope.diagnostics.watchers.losses.objectives import MAX_VALUES, Objectives
from normscope.diagnostics.watchers.losses.sites import LossSites, source_of
from normscope.diagnostics.watchers.losses.value_origins import PROBABILITY_FUNCTIONS, Origin, ValueOrigins
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tracer import FunctionCall

_MAX_LOSSES = MAX_VALUES
"""Cross-entropies that are kept. The first non-finite one after them is kept too."""

_MAX_DEPTH = 1
"""Hand-written losses are looked for outside of modules, in the outermost module, which may return its loss, and in
modules without parameters, such as a criterion that is part of the model."""


class LossWatcher(Watcher):
    """Fills `losses`, `loss_functions` and `objectives`."""

    functions: ClassVar[Collection[str] | None] = frozenset(
        {*LOSS_FUNCTIONS, *value_origins.FOLLOWED, *objective_terms.FOLLOWED}
    )

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._origins, self._terms = ValueOrigins(), ObjectiveTerms()
        self._losses: list[LossRecord] = []
        self._sites, self._objectives = LossSites(), Objectives()
        self._hand_written = HandWrittenLosses(self._sites, self._origins, self._terms)
        self._without_parameters: dict[nn.Module, bool] = {}

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if not outer:
            self._sites.start_pass()

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        tensors = [output] if isinstance(output, Tensor) else tensors_in(output)
        for tensor in tensors:
            if is_measurable(tensor):
                self._origins.return_from(frame.accumulator.name, tensor)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        name = call.name
        if isinstance(result, Tensor) and result.is_nested:
            return
        if name in LOSS_FUNCTIONS:
            self._take_loss(call, result)
            return
        if name == "embedding":
            if isinstance(call.args[0], Tensor):
                self._sites.embed(call.args[0])
            return
        if self._may_be_loss(call.frames):
            if isinstance(result, Tensor) and result.requires_grad:
                self._hand_written.find(call, result)
            if name in objective_terms.FOLLOWED:
                self._terms.follow(call, result)
        if name in value_origins.FOLLOWED:
            self._origins.follow(call, result)

    def _may_be_loss(self, frames: Sequence[CallFrame]) -> bool:
        """Whether a function is called where losses are computed."""
        if len(frames) <= _MAX_DEPTH:
            return True
        module = frames[-1].module
        if module not in self._without_parameters:
            self._without_parameters[module] = next(module.parameters(), None) is None
        return self._without_parameters[module]

    def fail_function(self, call: FunctionCall) -> None:
        """Some losses raise an error for arguments out of range."""
        if call.name in LOSS_FUNCTIONS:
            named = arguments_of(call)
            x = input_of(named)
            index = self._sites.find(call.name, self._origins.of(x), "error") if isinstance(x, Tensor) else None
            if index is not None:
                self._sites.measure(index, call.name, named, self._origins.of(x))

    def _take_loss(self, call: FunctionCall, result: Any) -> None:
        named = arguments_of(call)
        x = input_of(named)
        if not isinstance(x, Tensor) or not isinstance(result, Tensor):
            return
        origin = self._origins.of(x)
        if call.name == "cross_entropy":
            self._add_cross_entropy(named, x, origin, result)
        if not result.requires_grad or not is_measurable(result):
            return
        reduction = str(named.get("reduction", "mean"))
        index = self._sites.find(call.name, origin, reduction)
        if index is None:
            return
        self._sites.measure(index, call.name, named, origin)
        if result.numel() == 1:
            self._sites.add_value(index, float(result.detach()))
        batch = x.shape[1 if call.name == "ctc_loss" and x.dim() > 1 else 0] if x.dim() else 1
        self._terms.begin(result, index, batch, is_sum=reduction == "sum")

    def _add_cross_entropy(self, named: dict[str, Any], logits: Tensor, origin: Origin | None, result: Tensor) -> None:
        """Add a cross-entropy, if it is a mean: a sum cannot be compared with ln(classes)."""
        if named.get("reduction") != "mean" or logits.dim() < 2 or not is_measurable(result) or result.numel() != 1:
            return
        value, losses = float(result.detach()), self._losses
        is_first_non_finite = bool(losses) and math.isfinite(losses[-1].value) and not math.isfinite(value)
        if len(losses) < _MAX_LOSSES or is_first_non_finite:
            function, module, source, cosines = None, None, None, False
            if origin is not None:
                if origin.function in PROBABILITY_FUNCTIONS and not origin.is_scaled:
                    function, module = origin.function, origin.module
                source, cosines = source_of(origin), origin.has_cosines
            axis = classes_axis("cross_entropy", named, logits)
            assert axis is not None
            losses.append(LossRecord(value, logits.shape[axis], function, module, source, cosines))

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        root = roots[0] if len(roots) == 1 else None
        if root is not None and is_measurable(root) and root.numel() == 1:
            self._objectives.start_backward(root, self._terms.of(root), self._hand_written.empty_mask)
        self._hand_written.empty_mask = None

    def clip_gradients(self, parameters: Sequence[Tensor], norm: Tensor, limit: float) -> None:
        self._objectives.is_clipped = True

    def before_step(self, optimizer: Optimizer) -> None:
        if self._steps_model(optimizer):
            self._objectives.step(optimizer)

    def zero_grad(self, owner: Optimizer | nn.Module) -> None:
        if owner is self.watched.model or (isinstance(owner, Optimizer) and self._steps_model(owner)):
            self._objectives.reset_gradients()

    def _steps_model(self, optimizer: Optimizer) -> bool:
        tracked = self.watched.parameters.tracked
        return not tracked.keys().isdisjoint(map(id, parameters_of(optimizer)))

    def finish(self) -> dict[str, Any]:
        self._origins.clear()
        self._terms.clear()
        self._hand_written.clear()
        return {
            "losses": tuple(self._losses),
            "loss_functions": self._sites.finish(),
            "objectives": self._objectives.finish(),
        }
