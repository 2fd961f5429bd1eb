"""Find losses written by hand: differences of predictions and targets, likelihoods of labels, hinges."""

import torch
from torch import Tensor

from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_readable, version_of
from normscope.diagnostics.watchers.losses.objective_terms import ObjectiveTerms
from normscope.diagnostics.watchers.losses.shapes import broadcasts, has_integers
from normscope.diagnostics.watchers.losses.sites import LossSites
from normscope.diagnostics.watchers.losses.value_origins import ValueOrigins
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_SELECTING = {"getitem", "gather", "masked_select", "take_along_dim", "index_select"}


class HandWrittenLosses:
    """Finds the calls of torch functions where such losses begin, and masks that leave nothing of a loss."""

    def __init__(self, sites: LossSites, origins: ValueOrigins, terms: ObjectiveTerms) -> None:
        self._sites, self._origins, self._terms = sites, origins, terms
        self._margins = TensorTable[tuple[Tensor, bool]](version_of)
        self.empty_mask: str | None = None
        """Where a mask left nothing of a loss since the last backward pass."""

    def clear(self) -> None:
        self._margins.clear()

    @torch.no_grad()
    def find(self, call: FunctionCall, result: Tensor) -> None:
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
                self.empty_mask = source_line() or "the loss"
            elif self._is_likelihood(args[0]) and has_integers(args[1:]):
                self._begin("log_likelihood", args[0], None, result)
        elif name == "log" and (origin := self._origins.of(args[0])) is not None:
            if origin.function == "clamp" and not origin.is_scaled:
                self._begin("log", args[0], None, result)
        elif name in ("where", "masked_fill"):
            if not result.any() and any(isinstance(a, Tensor) and self._terms.of(a) is not None for a in args):
                self.empty_mask = source_line() or "the loss"
        elif name == "cosine_similarity" and len(args) > 1 and args[0].requires_grad is not args[1].requires_grad:
            self._begin("similarity", args[0] if args[0].requires_grad else args[1], None, result)

    def _find_product(self, x: Tensor, other: Tensor, result: Tensor) -> None:
        if not other.is_floating_point() and not is_readable(other) and other.dtype != torch.bool:
            return
        if not other.any():
            self.empty_mask = source_line() or "the loss"
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
        index = self._sites.find(name, origin, "none")
        if index is not None:
            self._sites.measure(index, name, {"input": x, "target": target}, origin)
            self._terms.begin(result, index, x.shape[0] if x.dim() else 1, is_signed=name == "difference")
