"""Follow scores of attention from the product of queries and keys to the product of weights and values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_readable
from normscope.diagnostics.stats.attention_use import AttentionUse, MixedAxes
from normscope.diagnostics.watchers.attention_use.axes import mixes_axes
from normscope.diagnostics.watchers.attention_use.masks import is_reversed, padding_of
from normscope.diagnostics.watchers.attention_use.scores import (
    MAX_MASK,
    Scores,
    factor_of,
    filled,
    fits,
    is_binary,
    reshaped,
    with_addend,
)
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_MAX_CALLS = 2
"""Calls of each attention that are measured."""

_SAMPLES = 4

_MASKED = 1000.0
"""A score this far below the largest of its row is masked: masks add -10000, or the smallest float."""

_PRODUCTS = {"matmul", "bmm", "baddbmm"}

_AXES = {
    "view",
    "reshape",
    "transpose",
    "permute",
    "mT",
    "contiguous",
    "dropout",
    "unsqueeze",
    "to",
    "float",
    "type_as",
}

_SDPA_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


@dataclass
class _Weights:
    """The output of a softmax over scores: its axis, from the end."""

    module: str
    axis: int


class AttentionUseWatcher(Watcher):
    """Watches how scores are scaled, masked and normalized, and views that mix up heads, tokens and samples."""

    functions = (
        *_PRODUCTS,
        *("einsum", "mul", "div", "add", "sub", "masked_fill", "where", "softmax", "scaled_dot_product_attention"),
        *("view", "reshape", "transpose", "permute", "mT", "dropout", "flatten"),
    )

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._scores = TensorTable[Scores]()
        self._weights = TensorTable[_Weights]()
        self._used: dict[str, AttentionUse] = {}
        self._calls: dict[str, int] = {}
        self._mixed: dict[str, MixedAxes] = {}
        self._padding: Tensor | None = None
        self._shape: tuple[int, ...] = ()

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if not outer:
            first = next(tensors_in((args, kwargs)), None)
            self._padding = None if first is None else padding_of(first)
            self._shape = () if first is None else tuple(first.shape)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if not call.frames or not isinstance(result, Tensor) or result.dim() < 2 or not is_readable(result):
            return
        name = call.name
        if name == "scaled_dot_product_attention":
            self._see_fused(call)
        elif name == "softmax":
            self._see_softmax(call, result)
        elif name in _PRODUCTS:
            self._see_product(call, result)
        elif name == "einsum":
            self._see_einsum(call, result)
        elif name in ("view", "reshape", "flatten"):
            self._see_view(call, result)
        elif result.dim() >= 3:
            self._follow(call, result)

    def stop(self) -> None:
        self._scores.clear()
        self._weights.clear()
        self._padding = None

    def finish(self) -> dict[str, Any]:
        return {"attention_use": tuple(self._used.values()), "mixed_axes": tuple(self._mixed.values())}

    def _see_product(self, call: FunctionCall, result: Tensor) -> None:
        start = 1 if call.name == "baddbmm" else 0
        tensors = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)][start : start + 2]
        if len(tensors) < 2 or result.dim() < 3 or min(x.dim() for x in tensors) < 2:
            return
        a, b = tensors
        for operand, contracted in ((a, -1), (b, -2)):
            weights = self._weights.get(operand)
            if weights is not None:
                self._contract(weights, contracted)
                return
        if a.dim() == b.dim() and not isinstance(b, torch.nn.Parameter):
            known = [self._scores.get(x) or Scores() for x in (a, b)]
            scale = (
                None if None in (known[0].scale, known[1].scale) else (known[0].scale or 0.0) * (known[1].scale or 0.0)
            )
            found = Scores(scale, a.shape[-1])
            if call.name == "baddbmm":  # nn.MultiheadAttention adds its mask here
                found = with_addend(found, call.args[0])
                alpha = call.kwargs.get("alpha", 1)
                found = replace(found, scale=None if found.scale is None else found.scale * float(alpha))
            self._scores.put(result, found)

    def _see_einsum(self, call: FunctionCall, result: Tensor) -> None:
        """A product of two operands by letters, such as bhqd,bhkd->bhqk."""
        equation, *operands = call.args
        operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation or "." in equation:
            return
        left, right = equation.replace(" ", "").split("->")
        letters = left.split(",")
        if len(letters) != 2 or not all(
            isinstance(x, Tensor) and x.dim() == len(own) for x, own in zip(operands, letters, strict=True)
        ):
            return
        for x, own in zip(operands, letters, strict=True):
            weights = self._weights.get(x)
            if weights is not None:
                summed = [i - len(own) for i, letter in enumerate(own) if letter not in right]
                if summed:
                    self._contract(weights, weights.axis if weights.axis in summed else summed[0])
                return
        summed_letters = [letter for letter in letters[0] if letter in letters[1] and letter not in right]
        if len(summed_letters) == 1 and result.dim() >= 3 and not isinstance(operands[1], torch.nn.Parameter):
            known = [self._scores.get(x) or Scores() for x in operands]
            scale = (
                None if None in (known[0].scale, known[1].scale) else (known[0].scale or 0.0) * (known[1].scale or 0.0)
            )
            self._scores.put(result, Scores(scale, operands[0].shape[letters[0].index(summed_letters[0])]))

    def _contract(self, weights: _Weights, axis: int) -> None:
        used = self._used.get(weights.module)
        if used is not None and used.contracted_axis is None:
            self._used[weights.module] = replace(used, softmax_axis=weights.axis, contracted_axis=axis)

    def _follow(self, call: FunctionCall, result: Tensor) -> None:
        """Scale, mask, or transpose queries, keys, scores and weights."""
        tensors = [x for x in (*call.args[:3], *call.kwargs.values()) if isinstance(x, Tensor)]
        name = call.name
        if name in ("transpose", "permute", "mT", "dropout"):
            self._pass_on(call, result)
            return
        main = next((x for x in tensors if self._scores.get(x) is not None), None)
        known = None if main is None else self._scores.get(main)
        if name in ("mul", "div"):
            factor = factor_of(call, main)
            if known is None:
                if isinstance(factor, float) and factor and tensors:
                    self._scores.put(result, Scores(scale=1 / factor if name == "div" else factor))
                return
            if isinstance(factor, Tensor):
                is_mask = name == "mul" and known.head_dim and is_binary(factor, result)
                found = replace(known, scale=None)
                if is_mask:
                    found = replace(known, mask="multiplied", fill=0.0, masked=factor == 0)
                self._scores.put(result, found)
            elif factor is not None and known.scale is not None and factor:
                self._scores.put(
                    result, replace(known, scale=known.scale / factor if name == "div" else known.scale * factor)
                )
        elif known is None or not known.head_dim:
            return
        elif name == "add":
            others = [x for x in tensors if x is not main]
            self._scores.put(result, with_addend(known, others[0]) if others else known)
        elif name == "sub":
            self._scores.put(result, known)
        elif name == "masked_fill" and len(call.args) + len(call.kwargs) >= 3:
            mask = call.args[1] if len(call.args) > 1 else call.kwargs.get("mask")
            value = call.args[2] if len(call.args) > 2 else call.kwargs.get("value")
            if main is call.args[0]:
                self._scores.put(result, filled(known, mask, value))
        elif name == "where" and len(call.args) == 3:
            condition, a, b = call.args
            if main is a:
                self._scores.put(result, filled(known, ~condition if condition.dtype == torch.bool else None, b))
            elif main is b:
                self._scores.put(result, filled(known, condition, a))

    def _pass_on(self, call: FunctionCall, result: Tensor) -> None:
        given = call.args[0] if call.args else None
        if not isinstance(given, Tensor):
            return
        known = self._scores.get(given)
        if known is not None and (not known.head_dim or call.name == "dropout"):
            self._scores.put(result, known)
        weights = self._weights.get(given)
        if weights is None:
            return
        order = list(range(given.dim()))
        if call.name == "transpose":
            i, j = (int(x) for x in (call.args[1:3] if len(call.args) > 2 else call.kwargs.values()))
            order[i], order[j] = order[j], order[i]
        elif call.name == "mT":
            order[-1], order[-2] = order[-2], order[-1]
        elif call.name == "permute":
            dims = call.args[1:] if len(call.args) > 2 else call.args[1] if len(call.args) > 1 else call.kwargs["dims"]
            order = [int(x) % given.dim() for x in dims]
        axis = order.index(weights.axis % given.dim()) - given.dim()
        self._weights.put(result, _Weights(weights.module, axis))

    def _see_softmax(self, call: FunctionCall, result: Tensor) -> None:
        scores = call.args[0] if call.args else call.kwargs.get("input")
        known = self._scores.get(scores) if isinstance(scores, Tensor) else None
        single = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
        if known is None and isinstance(single, int) and result.shape[single] == 1 and result.requires_grad:
            name = call.frames[-1].accumulator.name
            if max(result.shape[1:], default=1) > 1:
                self._used[name] = AttentionUse(name, softmax_axis=single, keys=1, source=source_line() or "")
            return
        if known is None or not known.head_dim or scores is None or result.dim() < 3:
            return
        dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
        name = call.frames[-1].accumulator.name
        if not isinstance(dim, int) or not self._is_due(name):
            return
        axis = dim % result.dim() - result.dim()
        self._weights.put(result, _Weights(name, axis))
        if axis != -1:
            self._used.setdefault(
                name, AttentionUse(name, known.head_dim, softmax_axis=axis, source=source_line() or "")
            )
            return
        self._measure(name, scores.detach(), result.detach(), known)

    def _is_due(self, name: str) -> bool:
        self._calls[name] = number = self._calls.get(name, 0) + 1
        return number <= _MAX_CALLS

    def _see_fused(self, call: FunctionCall) -> None:
        name = call.frames[-1].accumulator.name
        named = dict(zip(_SDPA_ARGS, call.args, strict=False)) | call.kwargs
        q, k, mask = named["query"], named["key"], named.get("attn_mask")
        if not is_measurable(q) or not is_measurable(k) or not q.numel() or not k.numel() or q.dim() < 3:
            return
        if not self._is_due(name) or q.numel() + k.numel() > MAX_MASK:
            return
        factor = named.get("scale")
        factor = 1 / math.sqrt(q.shape[-1]) if factor is None else float(factor)
        scales = [(self._scores.get(x) or Scores()).scale for x in (q, k)]
        known = Scores(None if None in scales else factor * (scales[0] or 0) * (scales[1] or 0), q.shape[-1])
        q, k = q.detach()[:_SAMPLES].float(), k.detach()[:_SAMPLES].float()
        if q.dim() == 4 and k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        if q.shape[-2] * k.shape[-2] * q.shape[0] * (q.shape[1] if q.dim() == 4 else 1) > MAX_MASK:
            return
        scores = factor * (q @ k.transpose(-1, -2))
        if named.get("is_causal"):
            causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~causal, -math.inf)
        elif isinstance(mask, Tensor):
            mask = mask.detach()
            mask = mask[:_SAMPLES] if mask.dim() == q.dim() and len(mask) > 1 else mask
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, -math.inf)
            else:
                known = with_addend(known, mask)
                scores = scores + mask
        self._measure(name, scores, scores.softmax(-1), known)

    def _measure(self, name: str, scores: Tensor, weights: Tensor, known: Scores) -> None:
        if not is_measurable(scores) or not 0 < scores.numel() <= 4 * MAX_MASK:
            return
        visible = scores > scores.amax(-1, keepdim=True) - _MASKED
        masked_weight = None
        if known.masked is not None:
            masked = known.masked.expand(weights.shape) if fits(known.masked, weights) else None
            if masked is not None:
                rows = masked.any(-1) & ~masked.all(-1)
                mass = torch.where(masked, weights, 0.0).sum(-1)[rows]
                masked_weight = float(mass.mean()) if mass.numel() else None
                visible = visible & ~masked
        seen = scores[visible]
        found = AttentionUse(
            module=name,
            head_dim=known.head_dim,
            scale=known.scale,
            score_std=float(seen.float().std()) if seen.numel() > 1 else 0.0,
            masked_weight=masked_weight,
            mask=known.mask,
            fill=known.fill,
            is_reversed=is_reversed(visible),
            visible_keys=None if bool(visible.all()) else int(visible.sum(-1).amax()),
            keys=int(scores.shape[-1]),
            sees_padding_only=self._sees_padding_only(visible),
            source=source_line() or "",
        )
        before = self._used.get(name)
        if before is None or (found.masked_weight or 0.0) > (before.masked_weight or 0.0):
            self._used[name] = found

    def _sees_padding_only(self, visible: Tensor) -> bool:
        padding = self._padding
        if padding is None or visible.shape[-1] != padding.shape[1]:
            return False
        heads = math.prod(visible.shape[1:-2]) if visible.dim() == 4 else max(1, len(visible) // max(1, len(padding)))
        keys = visible.flatten(0, -2).reshape(-1, visible.shape[-2], visible.shape[-1]).any(1)  # of each sample, head
        samples = len(keys) // max(1, heads)
        if samples == 0 or samples > len(padding):
            return False
        padding = padding[:samples].to(keys.device).repeat_interleave(heads, 0)
        rows = padding.any(1) & ~padding.all(1)
        return bool(rows.any()) and len(padding) == len(keys) and bool((keys[rows] == padding[rows]).all())

    # Axes

    def _see_view(self, call: FunctionCall, result: Tensor) -> None:
        given = call.args[0] if call.args else None
        if not isinstance(given, Tensor) or given.dim() < 2 or not is_measurable(given) or not given.numel():
            return
        weights = self._weights.get(given)
        if weights is not None and given.shape[-2:] == result.shape[-2:] and weights.axis >= -2:
            self._weights.put(result, weights)
        known = self._scores.get(given)
        if known is not None and (not known.head_dim or given.shape[-2:] == result.shape[-2:]):
            self._scores.put(result, known if known.masked is None else reshaped(known, given, result))
        name = call.frames[-1].accumulator.name
        is_own = not type(call.frames[-1].module).__module__.startswith("torch.")  # torch's layers know what they do
        if is_own and name not in self._mixed and mixes_axes(tuple(given.shape), tuple(result.shape), self._shape):
            before, after = tuple(given.shape), tuple(result.shape)
            self._mixed[name] = MixedAxes(name, call.name, before, after, source_line() or "")
