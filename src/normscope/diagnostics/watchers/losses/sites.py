"""What the loss functions got, by the line that calls them."""

import math
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_readable
from normscope.diagnostics.stats.losses import LossFunctionStats
from normscope.diagnostics.watchers.losses.measures import (
    REGRESSIONS,
    LossMeasures,
    input_of,
    target_of,
)
from normscope.diagnostics.watchers.losses.shapes import broadcasts, is_picked, is_transposed
from normscope.diagnostics.watchers.losses.value_origins import Origin

_MAX_SITES = 64
"""Loss functions that are told apart."""

_MAX_TOKENS = 64
"""Tensors of tokens in a pass that targets are compared with."""

_MAX_VALUES = 100
"""Values of a loss function that are kept."""

_ALWAYS_MEASURED = 16
"""So many calls of a loss function are measured; after that, every 16th."""


class LossSites:
    """The calls of loss functions, by function, line and origin of the input."""

    def __init__(self) -> None:
        self._sites: dict[tuple[Any, ...], int] = {}
        self._measures: list[LossMeasures] = []
        self._tokens: deque[weakref.ref[Tensor]] = deque(maxlen=_MAX_TOKENS)

    def start_pass(self) -> None:
        """A model is called: forget the tokens of the call before."""
        self._tokens.clear()

    def embed(self, tokens: Tensor) -> None:
        self._tokens.append(weakref.ref(tokens))

    def find(self, name: str, origin: Origin | None, reduction: str) -> int | None:
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
    def measure(self, index: int, name: str, named: dict[str, Any], origin: Origin | None) -> None:
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

    def add_value(self, index: int, value: float) -> None:
        measures = self._measures[index]
        values = measures.fields.setdefault("values", [])
        if len(values) < _MAX_VALUES:
            values.append(value)
        if math.isfinite(value):
            measures.lower_to("least", value)

    def finish(self) -> tuple[LossFunctionStats, ...]:
        self._tokens.clear()
        fields = (measures.fields for measures in self._measures)
        return tuple(LossFunctionStats(**{**one, "values": tuple(one.get("values", ()))}) for one in fields)


def source_of(origin: Origin) -> str | None:
    """The module that returned the values, before a function with bounds."""
    if origin.function is None:
        return origin.module
    return None if origin.before is None else origin.before.module


def _origin_fields(origin: Origin) -> dict[str, Any]:
    fields: dict[str, Any] = {"source": source_of(origin), "scaled_cosines": origin.has_cosines}
    if origin.function is not None:
        fields |= {"origin_function": origin.function, "origin_module": origin.module}
        fields |= {"origin_scaled": origin.is_scaled, "low": origin.low, "high": origin.high}
        fields |= {"softmax_size": origin.size or 0, "softmax_over_batch": origin.over_batch}
    if origin.before is not None and origin.before.function is not None and not origin.before.is_scaled:
        fields |= {"before_function": origin.before.function, "before_module": origin.before.module}
    return fields
