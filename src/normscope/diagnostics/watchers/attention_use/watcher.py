"""Follow scores of attention from the product of queries and keys to the product of weights and values."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, is_readable
from normscope.diagnostics.stats.attention_use import AttentionUse, MixedAxes
from normscope.diagnostics.watchers.attention_use.axes import mixes_axes
from normscope.diagnostics.watchers.attention_use.followed_scores import FollowedScores, Weights
from normscope.diagnostics.watchers.attention_use.masks import is_reversed, padding_of
from normscope.diagnostics.watchers.attention_use.scores import (
    MAX_MASK,
    Scores,
    fits,
    reshaped,
    with_addend,
)
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tracer import FunctionCall

_MAX_CALLS = 2
"""Calls of each attention that are measured."""

_SAMPLES = 4

_MASKED = 1000.0
"""A score this far below the largest of its row is masked: masks add -10000, or the smallest float."""

_PRODUCTS = {"matmul", "bmm", "baddbmm"}

_SDPA_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


class AttentionUseWatcher(Watcher):
    """Watches how scores are scaled, masked and normalized, and views that mix up heads, tokens and samples."""

    functions = (
        *_PRODUCTS,
        *("einsum", "mul", "div", "add", "sub", "masked_fill", "where", "softmax", "scaled_dot_product_attention"),
        *("view", "reshape", "transpose", "permute", "mT", "dropout", "flatten"),
    )

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._followed = FollowedScores()
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
            self._contract(self._followed.product(call, result))
        elif name == "einsum":
            self._contract(self._followed.einsum(call, result))
        elif name in ("view", "reshape", "flatten"):
            self._see_view(call, result)
        elif result.dim() >= 3:
            self._followed.follow(call, result)

    def stop(self) -> None:
        self._followed.clear()
        self._padding = None

    def finish(self) -> dict[str, Any]:
        return {"attention_use": tuple(self._used.values()), "mixed_axes": tuple(self._mixed.values())}

    def _contract(self, found: tuple[Weights, int] | None) -> None:
        if found is None:
            return
        weights, axis = found
        used = self._used.get(weights.module)
        if used is not None and used.contracted_axis is None:
            self._used[weights.module] = replace(used, softmax_axis=weights.axis, contracted_axis=axis)

    def _see_softmax(self, call: FunctionCall, result: Tensor) -> None:
        scores = call.args[0] if call.args else call.kwargs.get("input")
        known = self._followed.scores.get(scores) if isinstance(scores, Tensor) else None
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
        self._followed.weights.put(result, Weights(name, axis))
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
        scale = self._followed.scale_of(q, k)
        known = Scores(None if scale is None else factor * scale, q.shape[-1])
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
        weights = self._followed.weights.get(given)
        if weights is not None and given.shape[-2:] == result.shape[-2:] and weights.axis >= -2:
            self._followed.weights.put(result, weights)
        known = self._followed.scores.get(given)
        if known is not None and (not known.head_dim or given.shape[-2:] == result.shape[-2:]):
            self._followed.scores.put(result, known if known.masked is None else reshaped(known, given, result))
        name = call.frames[-1].accumulator.name
        is_own = not type(call.frames[-1].module).__module__.startswith("torch.")  # torch's layers know what they do
        if is_own and name not in self._mixed and mixes_axes(tuple(given.shape), tuple(result.shape), self._shape):
            before, after = tuple(given.shape), tuple(result.shape)
            self._mixed[name] = MixedAxes(name, call.name, before, after, source_line() or "")
