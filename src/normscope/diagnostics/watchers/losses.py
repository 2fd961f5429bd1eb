"""Watch losses: what loss functions get, and what the scalars that backward starts from consist of."""

import math
import weakref
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_readable, version_of
from normscope.diagnostics.record import LossRecord
from normscope.diagnostics.stats.losses import LossFunctionStats
from normscope.diagnostics.watchers import objective_terms, value_origins
from normscope.diagnostics.watchers.loss_measures import (
    LOSS_FUNCTIONS,
    REGRESSIONS,
    LossMeasures,
    arguments_of,
    classes_axis,
    input_of,
    target_of,
)
from normscope.diagnostics.watchers.loss_shapes import broadcasts, has_integers, is_picked, is_transposed
from normscope.diagnostics.watchers.objective_terms import ObjectiveTerms
from normscope.diagnostics.watchers.objectives import MAX_VALUES, Objectives
from normscope.diagnostics.watchers.value_origins import PROBABILITY_FUNCTIONS, Origin, ValueOrigins
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_MAX_LOSSES = MAX_VALUES
"""Cross-entropies that are kept. The first non-finite one after them is kept too."""

_MAX_SITES = 64
"""Loss functions that are told apart."""

_MAX_VALUES = 100
"""Values of a loss function that are kept."""

_ALWAYS_MEASURED = 16
"""So many calls of a loss function are measured; after that, every 16th."""

_MAX_DEPTH = 1
"""Hand-written losses are looked for outside of modules, in the outermost module, which may return its loss, and in
modules without parameters, such as a criterion that is part of the model."""

_SELECTING = {"getitem", "gather", "masked_select", "take_along_dim", "index_select"}


class LossWatcher(Watcher):
    """Fills `losses`, `loss_functions` and `objectives`."""

    functions: ClassVar[Collection[str] | None] = frozenset(
        {*LOSS_FUNCTIONS, *value_origins.FOLLOWED, *objective_terms.FOLLOWED}
    )

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._origins, self._terms = ValueOrigins(), ObjectiveTerms()
        self._losses: list[LossRecord] = []
        self._sites: dict[tuple[Any, ...], int] = {}
        self._measures: list[LossMeasures] = []
        self._objectives = Objectives()
        self._without_parameters: dict[nn.Module, bool] = {}
        self._margins = TensorTable[tuple[Tensor, bool]](version_of)
        self._tokens: list[weakref.ref[Tensor]] = []
        self._empty_mask: str | None = None
        """Where a mask left nothing of a loss since the last backward pass."""

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if not outer:
            self._tokens.clear()

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
                self._tokens.append(weakref.ref(call.args[0]))
            return
        if self._may_be_loss(call.frames):
            if isinstance(result, Tensor) and result.requires_grad:
                self._find_hand_written(call, result)
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
            index = self._site(call.name, self._origins.of(x), "error") if isinstance(x, Tensor) else None
            if index is not None:
                self._measure(index, call.name, named, self._origins.of(x))

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
        index = self._site(call.name, origin, reduction)
        if index is None:
            return
        self._measure(index, call.name, named, origin)
        if result.numel() == 1:
            self._add_value(index, float(result.detach()))
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
                source, cosines = _source(origin), origin.has_cosines
            axis = classes_axis("cross_entropy", named, logits)
            assert axis is not None
            losses.append(LossRecord(value, logits.shape[axis], function, module, source, cosines))

    def _site(self, name: str, origin: Origin | None, reduction: str) -> int | None:
        """The index of the loss function on this line, for inputs of this origin."""
        line = source_line()
        key = (name, line, origin and (origin.function, origin.module, origin.low, origin.high), reduction)
        if key not in self._sites:
            if len(self._sites) >= _MAX_SITES:
                return None
            fields: dict[str, Any] = {"function": name, "line": line, "reduction": reduction}
            if origin is not None:
                fields |= _origin_fields(origin)
            self._sites[key] = len(self._measures)
            self._measures.append(LossMeasures(**fields))
        return self._sites[key]

    @torch.no_grad()
    def _measure(self, index: int, name: str, named: dict[str, Any], origin: Origin | None) -> None:
        measures = self._measures[index]
        fields, x, target = measures.fields, input_of(named), target_of(named)
        measures.count("calls")
        if measures.fields["calls"] > _ALWAYS_MEASURED and measures.fields["calls"] % _ALWAYS_MEASURED:
            return
        if isinstance(target, Tensor) and x.is_floating_point():
            self._take_shapes(fields, measures, name, tuple(x.shape), tuple(target.shape))
            measures.count("swapped_arguments", int(target.requires_grad and not x.requires_grad))
            measures.count("transposed", int(is_transposed(() if origin is None else origin.flattened, target)))
            if not target.is_floating_point() and is_readable(target):
                self._compare_with_tokens(measures, target, named.get("ignore_index"))
        for argument in ("label_smoothing", "log_target", "log_input"):
            if argument in named:
                fields[argument] = type(getattr(LossFunctionStats, argument))(named[argument])
        if name == "triplet_margin_loss":
            picked = (is_picked(named[part]) for part in ("anchor", "positive", "negative"))
            fields["is_mined"] = fields.get("is_mined", False) or any(picked)
        low, high = (-math.inf, math.inf) if origin is None else (origin.low, origin.high)
        measures.take(name, named, low, high)

    def _take_shapes(
        self, fields: dict[str, Any], measures: LossMeasures, name: str, x: tuple[int, ...], target: tuple[int, ...]
    ) -> None:
        is_wrong = name not in ("cross_entropy", "nll_loss", "ctc_loss", "multi_margin_loss") and broadcasts(x, target)
        if name in REGRESSIONS and name != "difference" and x != target and math.prod(target) > 1:
            is_wrong = is_wrong or len(x) == len(target) or math.prod(target) > math.prod(x)
        if is_wrong:
            measures.count("broadcasts")
        if is_wrong or "input_shape" not in fields:
            fields["input_shape"], fields["target_shape"] = x, target

    def _compare_with_tokens(self, measures: LossMeasures, target: Tensor, ignore_index: Any) -> None:
        """Whether the targets are tokens that the model embedded, and no other input are those before them."""
        flat = target.detach().flatten()
        kept = flat != ignore_index if ignore_index is not None else torch.ones_like(flat, dtype=torch.bool)
        equal = False
        for tokens in (reference() for reference in self._tokens):
            if tokens is None or tokens.dim() < 2 or tokens.device != flat.device:
                continue
            rows = tokens.detach()
            is_cut = rows.shape[1] > 1 and rows[:, :-1].numel() == flat.numel()  # without the last prediction
            if rows.numel() != flat.numel() and not is_cut:
                continue
            rows = rows[:, :-1] if is_cut else rows
            wanted, counts = flat.view(rows.shape), kept.view(rows.shape)[:, :-1]
            if rows.shape[1] > 2 and float((rows[:, 1:] == wanted[:, :-1])[counts].float().mean()) > 0.9:
                measures.count("calls_shifted")
                return  # teacher forcing
            twice = (rows[:, 2:] == wanted[:, :-2])[counts[:, :-1]]
            if twice.numel() >= 32 and float(twice.float().mean()) > 0.99:
                measures.count("calls_shifted_twice")
            matches = (rows == wanted).flatten()[kept]
            if not is_cut and matches.numel() >= 32 and float(matches.float().mean()) >= 0.99:
                equal = len(flat[kept].unique()) >= 4
                measures.fields["token_length"] = int(rows.shape[1])
        measures.count("calls_equal_to_input", int(equal))

    def _add_value(self, index: int, value: float) -> None:
        measures = self._measures[index]
        values = measures.fields.setdefault("values", [])
        if len(values) < _MAX_VALUES:
            values.append(value)
        if math.isfinite(value):
            measures.lower_to("least", value)

    @torch.no_grad()
    def _find_hand_written(self, call: FunctionCall, result: Tensor) -> None:
        """Find differences of predictions and targets, likelihoods of labels, and masks that leave nothing."""
        name, args = call.name, call.args
        if len(self._margins):
            self._find_hinge(call, result)
        if name in ("sub", "rsub", "mul") and len(args) > 1 and all(isinstance(a, Tensor) for a in args[:2]):
            x, other = args[:2] if args[0].requires_grad else args[1::-1]
            if other.requires_grad or not is_measurable(x) or other.numel() < 2:
                return
            if name == "mul":
                self._find_product(x, other, result)
            elif is_readable(other) and self._terms.of(x) is None:
                self._begin("difference", x, other, result)
        elif name in _SELECTING and isinstance(args[0], Tensor):
            if args[0].numel() and not result.numel():
                self._empty_mask = source_line() or "the loss"
            elif self._is_likelihood(args[0]) and has_integers(args[1:]):
                self._begin("log_likelihood", args[0], None, result)
        elif name == "log" and (origin := self._origins.of(args[0])) is not None:
            if origin.function == "clamp" and not origin.is_scaled:
                self._begin("log", args[0], None, result)
        elif name in ("where", "masked_fill"):
            if not result.any() and any(isinstance(a, Tensor) and self._terms.of(a) is not None for a in args):
                self._empty_mask = source_line() or "the loss"
        elif name == "cosine_similarity" and len(args) > 1 and args[0].requires_grad is not args[1].requires_grad:
            self._begin("similarity", args[0] if args[0].requires_grad else args[1], None, result)

    def _find_product(self, x: Tensor, other: Tensor, result: Tensor) -> None:
        if not other.is_floating_point() and not is_readable(other) and other.dtype != torch.bool:
            return
        if not other.any():
            self._empty_mask = source_line() or "the loss"
        elif self._is_likelihood(x) and x.shape == other.shape and x.shape[-1] > 1 and bool((other >= 0).all()):
            if bool(((other.sum(-1) - 1).abs() < 1e-2).all()):
                self._begin("log_likelihood", x, None, result)
        elif broadcasts(tuple(x.shape), tuple(other.shape)) and self._terms.of(x) is None:
            self._begin("product", x, other, result)
        elif x.shape == other.shape and self._terms.of(x) is None and bool(((other == 0) | (other == 1)).all()):
            self._margins.put(result, (other, False))

    def _find_hinge(self, call: FunctionCall, result: Tensor) -> None:
        """Find max(0, 1 - y * x), whose targets should be 1 and -1, with targets 0 and 1."""
        known = next((a for a in call.args if isinstance(a, Tensor) and self._margins.get(a) is not None), None)
        if known is None:
            return
        target, is_margin = self._margins.get(known) or (known, False)
        if call.name in ("sub", "rsub") and any(isinstance(a, int | float) and a > 0 for a in call.args):
            self._margins.put(result, (target, True))
        elif is_margin and call.name in ("clamp", "clamp_min", "relu", "maximum", "max"):
            self._begin("hinge", known, target, result)

    def _is_likelihood(self, x: Tensor) -> bool:
        origin = self._origins.of(x)
        return origin is not None and origin.function in ("log_softmax", "softmax") and not origin.is_scaled

    def _begin(self, name: str, x: Tensor, target: Tensor | None, result: Tensor) -> None:
        origin = self._origins.of(x)
        index = self._site(name, origin, "none")
        if index is not None:
            self._measure(index, name, {"input": x, "target": target}, origin)
            self._terms.begin(result, index, x.shape[0] if x.dim() else 1, is_signed=name == "difference")

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        root = roots[0] if len(roots) == 1 else None
        if root is not None and is_measurable(root) and root.numel() == 1:
            self._objectives.start_backward(root, self._terms.of(root), self._empty_mask)
        self._empty_mask = None

    def clip_gradients(self, parameters: Sequence[Tensor], norm: float, limit: float) -> None:
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
        self._margins.clear()
        self._tokens.clear()
        functions = []
        for measures in self._measures:
            fields = measures.fields
            functions.append(LossFunctionStats(**{**fields, "values": tuple(fields.get("values", ()))}))
        return {
            "losses": tuple(self._losses),
            "loss_functions": tuple(functions),
            "objectives": self._objectives.finish(),
        }


def _source(origin: Origin) -> str | None:
    """The module that returned the values, before a function with bounds."""
    if origin.function is None:
        return origin.module
    return None if origin.before is None else origin.before.module


def _origin_fields(origin: Origin) -> dict[str, Any]:
    fields: dict[str, Any] = {"source": _source(origin), "scaled_cosines": origin.has_cosines}
    if origin.function is not None:
        fields |= {"origin_function": origin.function, "origin_module": origin.module}
        fields |= {"origin_scaled": origin.is_scaled, "low": origin.low, "high": origin.high}
        fields |= {"softmax_size": origin.size or 0, "softmax_over_batch": origin.over_batch}
    if origin.before is not None and origin.before.function is not None and not origin.before.is_scaled:
        fields |= {"before_function": origin.before.function, "before_module": origin.before.module}
    return fields
