"""Measure attention: entropy and peaks of the weights, from queries and keys or from softmax scores."""

import math

import torch
from torch import Tensor

from normscope.diagnostics.stats.tensors import AttentionStats
from normscope.ops.attention import attention_mask

_MAX_QUERIES = 32  # sampled from each sequence
_MAX_SEQUENCES = 4
_MASKED = 1000.0
"""A score this far below the largest of its row is masked: masks add -10000, or the smallest float."""


class AttentionAccumulator:
    """The statistics of one attention, over many batches."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of each head: relative entropies, peaked queries, all queries
        self._score_sum = self._score_squares = 0.0
        self._score_count = 0
        self._keys = 0
        self._future_weight: float | None = None

    def _add_scores(self, scores: Tensor, positions: Tensor | None) -> None:
        """Add scores before softmax, (b, h, s, t). Masked scores are minus infinity, or very low."""
        visible = scores > scores.amax(-1, keepdim=True) - _MASKED
        unmasked = scores[visible].double()
        if unmasked.numel():
            self._score_sum += float(unmasked.sum())
            self._score_squares += float(unmasked.square().sum())
            self._score_count += unmasked.numel()
        self._add_weights(torch.softmax(scores.double(), dim=-1), visible, positions)

    def _add_weights(self, weights: Tensor, visible: Tensor, positions: Tensor | None) -> None:
        """Add weights, (b, h, s, t), the mask of visible keys, and the key position of each query, if it has one."""
        key_counts = visible.sum(-1)
        wide = weights.double()
        entropy = -(wide * wide.clamp_min(1e-300).log()).sum(-1)
        usable = (key_counts > 1) & torch.isfinite(entropy)
        relative = torch.where(usable, entropy / key_counts.clamp_min(2).double().log(), 0.0).sum((0, 2))
        peaked = torch.where(usable, (wide.amax(-1) > 0.99).double(), 0.0).sum((0, 2))
        if not bool(usable.any()):
            return
        sums = torch.stack([relative, peaked, usable.sum((0, 2)).double()])
        self._sums = sums if self._sums is None or self._sums.shape != sums.shape else self._sums + sums
        self._keys = max(self._keys, int(key_counts.max()))
        if positions is not None:
            later = torch.arange(weights.shape[-1], device=weights.device)[None] > positions[:, None]
            future = float(torch.where(later, weights, 0.0).amax()) if later.any() else None
            if future is not None:
                self._future_weight = max(future, self._future_weight or 0.0)

    @torch.no_grad()
    def add_queries(
        self,
        q: Tensor,
        k: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
    ) -> None:
        """Add a sample of the queries, (b, h, s, e), with all keys, (b, kv heads, t, e)."""
        q, k = q.detach()[:_MAX_SEQUENCES], k.detach()[:_MAX_SEQUENCES]
        if q.dim() == 3:
            q, k = q[:, None], k[:, None]
        if q.dim() != 4 or q.shape[2] == 0 or k.shape[2] == 0:
            return
        if k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        s, t = q.shape[2], k.shape[2]
        sample = torch.linspace(0, s - 1, min(_MAX_QUERIES, s), device=q.device).round().long()
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = scale * (q[:, :, sample].float() @ k.float().transpose(-1, -2))
        masked = torch.zeros((), dtype=torch.bool, device=q.device)
        if causal or window is not None:
            masked = ~attention_mask(sample[:, None], torch.arange(t, device=q.device)[None], causal, window)
        if mask is not None:
            mask = mask.detach()
            mask = mask[:_MAX_SEQUENCES] if mask.dim() == 4 and mask.shape[0] > 1 else mask
            mask = mask[..., sample, :] if mask.dim() >= 2 and mask.shape[-2] == s else mask
            if mask.dtype == torch.bool:
                masked = masked | ~mask
            else:
                scores = scores + mask.float()
        self._add_scores(scores.masked_fill(masked, -math.inf), sample if s == t else None)

    @torch.no_grad()
    def add_softmax(self, scores: Tensor, heads: int) -> None:
        """Add a sample of the rows of softmax scores over keys, (b, h, s, t) or (b * h, s, t)."""
        scores = scores.detach()
        if scores.dim() == 3:
            scores = scores.unflatten(0, (-1, heads if len(scores) % heads == 0 else 1))
        s, t = scores.shape[-2:]
        if scores.numel() == 0:
            return
        sample = torch.linspace(0, s - 1, min(_MAX_QUERIES, s), device=scores.device).round().long()
        self._add_scores(scores[:_MAX_SEQUENCES, :, sample].float(), sample if s == t else None)

    def finish(self) -> AttentionStats | None:
        if self._sums is None:
            return None
        entropy, peaked = (self._sums[:2] / self._sums[2].clamp_min(1)).tolist()
        score_std = None
        if self._score_count:
            mean = self._score_sum / self._score_count
            score_std = math.sqrt(max(0.0, self._score_squares / self._score_count - mean * mean))
        return AttentionStats(
            heads=len(entropy),
            keys=self._keys,
            entropy=tuple(entropy),
            peaked=tuple(peaked),
            score_std=score_std,
            future_weight=self._future_weight,
        )
