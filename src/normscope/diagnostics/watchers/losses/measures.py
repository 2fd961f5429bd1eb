"""Measure a call of a loss function: its input, its targets, and how they fit together."""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.diagnostics.collect.tensors import is_readable
from normscope.diagnostics.watchers.losses.value_origins import is_plain, rows_of
from normscope.ops.cross_entropy import IGNORE_INDEX, cross_entropy
from normscope.tracing.tracer import FunctionCall

REGRESSIONS = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "difference"})
CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
BINARY_LOSSES = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"})
SIGN_LOSSES = frozenset({"soft_margin_loss", "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss"})
"""Losses whose targets are 1 and -1."""

_OTHERS = {"kl_div", "ctc_loss", "gaussian_nll_loss", "poisson_nll_loss", "triplet_margin_loss", "multi_margin_loss"}
_NAMES = (REGRESSIONS | CLASS_LOSSES | BINARY_LOSSES | SIGN_LOSSES | _OTHERS) - {"difference"}
UNTRAINED_CALLS = 2
"""Calls in which triplets are looked at: a wrong loss soon moves them."""

LOSS_FUNCTIONS: dict[str, dict[str, Any]] = {
    name: {p.name: p.default for p in inspect.signature(getattr(F, name)).parameters.values()} for name in _NAMES
}
"""Loss functions of torch, with their arguments and defaults."""


def arguments_of(call: FunctionCall) -> dict[str, Any]:
    """The arguments of a loss function by name."""
    if call.function is cross_entropy:
        names = dict(zip(("input", "target", "cap"), call.args, strict=False)) | call.kwargs
        names["input"] = names.get("logits", names.get("input"))
        names["target"] = names.get("targets", names.get("target"))
        return {**names, "ignore_index": IGNORE_INDEX, "reduction": "mean", "label_smoothing": 0.0, "class_axis": -1}
    defaults = LOSS_FUNCTIONS[call.name]
    return defaults | dict(zip(defaults, call.args, strict=False)) | call.kwargs


def input_of(named: dict[str, Any]) -> Any:
    """The first argument: what the model predicts."""
    return next((named[name] for name in ("input", "input1", "anchor", "log_probs") if name in named), None)


def target_of(named: dict[str, Any]) -> Any:
    return next((named[name] for name in ("target", "targets") if name in named), None)


def classes_axis(name: str, named: dict[str, Any], x: Tensor) -> int | None:
    """The axis of the classes of a loss's input; None if it has none."""
    if "class_axis" in named:
        return int(named["class_axis"])
    if name in CLASS_LOSSES:
        return 1 if x.dim() > 1 else 0
    return -1 if name in ("kl_div", "ctc_loss") and x.dim() else None


class LossMeasures:
    """What is known about the calls of one loss function on one line. Fields are those of `LossFunctionStats`."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.is_constant = True  # targets with one value
        self._distinct: set[float] = set()
        self._ignored_class: set[int] = set()
        self._measured = 0

    def raise_to(self, field: str, value: float) -> None:
        self.fields[field] = max(value, self.fields.get(field, value))

    def lower_to(self, field: str, value: float) -> None:
        self.fields[field] = min(value, self.fields.get(field, value))

    def count(self, field: str, number: int = 1) -> None:
        self.fields[field] = self.fields.get(field, 0) + number

    def average(self, field: str, value: float) -> None:
        self.fields[field] = (self.fields.get(field, 0.0) * (self._measured - 1) + value) / self._measured

    def take(self, name: str, named: dict[str, Any], low: float, high: float) -> None:
        """Measure one call: `low` and `high` bound the input."""
        self._measured += 1
        x, target = input_of(named), target_of(named)
        if is_plain(x):
            self._take_input(name, named, x)
        if isinstance(target, Tensor) and not target.numel():
            self.count("calls_without_targets")
        elif name == "ctc_loss":
            self._take_ctc(named, target)
        elif name == "triplet_margin_loss":
            if self._measured <= UNTRAINED_CALLS:
                self._take_triplets(named)
        elif isinstance(target, Tensor) and is_readable(target) and isinstance(x, Tensor):
            self._take_targets(name, named, x, target.detach())
            if name in REGRESSIONS and target.numel() and (math.isfinite(low) or math.isfinite(high)):
                self._take_reach(target.detach().float(), low, high)

    def _take_input(self, name: str, named: dict[str, Any], x: Tensor) -> None:
        axis = classes_axis(name, named, x)
        low, high = (float(end) for end in x.detach().aminmax())
        self.lower_to("input_min", low)
        self.raise_to("input_max", high)
        if self.fields.get("origin_function") in ("relu", "clamp"):
            self.average("zeros", float((x.detach() == low).float().mean()))
        if axis is None or not (math.isfinite(high)):
            return
        self.fields["classes"] = x.shape[axis]
        if x.shape[axis] < 2:
            return
        rows = rows_of(x, axis)
        sums_to_one = low >= 0 and high <= 1 and bool(((rows.sum(1) - 1).abs() < 1e-2).all())
        self.fields["sums_to_one"] = sums_to_one and self.fields.get("sums_to_one", True)
        if name != "cross_entropy":
            self.raise_to("unnormalized", float(rows.logsumexp(1).abs().max()))
            if x.dim() > 1 and x.shape[0] > 1:
                self.raise_to("unnormalized_over_batch", float(rows_of(x, 0).logsumexp(1).abs().max()))

    def _take_targets(self, name: str, named: dict[str, Any], x: Tensor, target: Tensor) -> None:
        if target.is_floating_point() and name in ("cross_entropy", "kl_div") and target.shape == x.shape:
            axis = classes_axis(name, named, x)
            if axis is not None and target.numel() and target.shape[axis] > 1:
                sums = rows_of(target, axis).sum(1)
                self.lower_to("target_sum_min", float(sums.min()))
                self.raise_to("target_sum_max", float(sums.max()))
        kept = target
        self._take_positive_weight(named.get("pos_weight"))
        if name in CLASS_LOSSES and not target.is_floating_point():
            kept = target[target != named["ignore_index"]]
            self.count("ignored", target.numel() - kept.numel())
            self._take_class_weights(named.get("weight"), kept)
            if not kept.numel():
                self.count("calls_without_targets")
        self.count("targets", kept.numel())
        if not kept.numel():
            return
        low, high = (float(end) for end in kept.aminmax())
        self.lower_to("target_min", low)
        self.raise_to("target_max", high)
        if len(self._distinct) <= 2:
            middle = kept[(kept != low) & (kept != high)].flatten()[:1].tolist() if low < high else []
            self._distinct.update(round(float(value), 5) for value in (low, high, *middle))
            self.fields["target_values"] = min(3, len(self._distinct))

    def _take_class_weights(self, weight: Any, kept: Tensor) -> None:
        if isinstance(weight, Tensor) and kept.numel() and bool((weight == 0).any()):
            zero = torch.nonzero(weight.detach() == 0).flatten().tolist()
            self._ignored_class.update(set(zero[:1024]) & set(kept.unique().tolist()))
            self.fields["zero_weight_classes"] = len(self._ignored_class)

    def _take_positive_weight(self, weight: Any) -> None:
        if isinstance(weight, Tensor) and bool((weight == 0).any()):
            self.fields["zero_weight_classes"] = int((weight == 0).sum())

    def _take_reach(self, target: Tensor, low: float, high: float) -> None:
        variance = float(target.var(unbiased=False))
        if not variance > 0:
            return
        margin = 1e-3 * (high - low if math.isfinite(high - low) else 1.0)
        missed = target - target.clamp(low, high)
        self.average("unreachable", min(1.0, float(missed.square().mean()) / variance))
        self.average("outside", float((missed.abs() > margin).float().mean()))

    def _take_ctc(self, named: dict[str, Any], target: Any) -> None:
        lengths = [named.get("input_lengths"), named.get("target_lengths")]
        inputs, targets = (torch.as_tensor(v).detach().cpu().flatten() for v in lengths)
        self.count("samples", targets.numel())
        self.count("too_short", int((inputs < targets).sum()))
        self.count("calls_without_targets", int(targets.numel() > 0 and int(targets.sum()) == 0))
        if isinstance(target, Tensor):
            used = target.detach().cpu()
            if used.dim() > 1:
                used = used[torch.arange(used.shape[1]) < targets[:, None]]
            self.count("targets", used.numel())
            self.count("blanks", int((used == named.get("blank", 0)).sum()))

    def _take_triplets(self, named: dict[str, Any]) -> None:
        anchor, positive, negative = (named[name] for name in ("anchor", "positive", "negative"))
        if not all(is_plain(x) and x.dim() > 1 for x in (anchor, positive, negative)):
            return
        near, far = ((anchor - other).detach().float().norm(dim=-1) for other in (positive, negative))
        self.count("samples", near.numel())
        self.count("equal_pairs", int((near == 0).sum()))
        self.count("swapped", int((near > far).sum()))
