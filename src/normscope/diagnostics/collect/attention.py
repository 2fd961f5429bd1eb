"""How sharply tokens look at others: from the queries and keys, or from the weights that softmax gave."""

import math

import torch
from torch import Tensor

from normscope.diagnostics.record import AttentionStats
from normscope.ops.attention import attention_mask

_QUERIES = 32  # of each text so many queries are looked at
_TEXTS = 4
_HIDDEN = 1000.0
"""A score so far below the highest of its row stands for "not to be seen": masks add -10000, or the least number."""


class AttentionAccumulator:
    """The figures of one attention, over many batches."""

    def __init__(self) -> None:
        self._entropy: Tensor | None = None
        self._sharpest: Tensor | None = None
        self._rows: Tensor | None = None
        self._scores = self._squares = 0.0
        self._numbers = 0
        self._keys = 0
        self._future: float | None = None

    def add_scores(self, scores: Tensor, places: Tensor | None) -> None:
        """Scores before softmax, (b, h, s, t); hidden ones are minus infinity, or very low."""
        visible = scores > scores.amax(-1, keepdim=True) - _HIDDEN
        real = scores[visible]
        if real.numel():
            self._scores += float(real.double().sum())
            self._squares += float(real.double().square().sum())
            self._numbers += real.numel()
        self.add_weights(torch.softmax(scores.double(), dim=-1), visible, places)

    def add_weights(self, weights: Tensor, visible: Tensor, places: Tensor | None) -> None:
        """Weights, (b, h, s, t); which keys could be seen; and where among the keys each query stands, if it does."""
        key_counts = visible.sum(-1)
        wide = weights.double()
        entropy = -(wide * wide.clamp_min(1e-300).log()).sum(-1)
        usable = (key_counts > 1) & torch.isfinite(entropy)
        share = torch.where(usable, entropy / key_counts.clamp_min(2).double().log(), 0.0).sum((0, 2))
        sharp = torch.where(usable, (wide.amax(-1) > 0.99).double(), 0.0).sum((0, 2))
        rows = usable.sum((0, 2))
        if not bool(rows.any()):
            return
        if self._entropy is None or self._entropy.shape != share.shape:
            self._entropy, self._sharpest, self._rows = (torch.zeros_like(share) for _ in range(3))
        assert self._sharpest is not None
        assert self._rows is not None
        self._entropy, self._sharpest, self._rows = self._entropy + share, self._sharpest + sharp, self._rows + rows
        self._keys = max(self._keys, int(key_counts.max()))
        if places is not None:
            later = torch.arange(weights.shape[-1], device=weights.device)[None] > places[:, None]
            future = float(torch.where(later, weights, 0.0).amax()) if later.any() else None
            if future is not None:
                self._future = max(future, self._future or 0.0)

    def finish(self) -> AttentionStats | None:
        if self._entropy is None or self._sharpest is None or self._rows is None:
            return None
        rows = self._rows.clamp_min(1)
        spread = None
        if self._numbers:
            mean = self._scores / self._numbers
            spread = math.sqrt(max(0.0, self._squares / self._numbers - mean * mean))
        return AttentionStats(
            heads=len(self._entropy),
            keys=self._keys,
            entropy=tuple((self._entropy / rows).tolist()),
            peaked=tuple((self._sharpest / rows).tolist()),
            score_std=spread,
            future_weight=self._future,
        )


def add_queries(
    attention: AttentionAccumulator,
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float | None,
) -> None:
    """Look at what some of the queries, (b, h, s, e), make of all keys, (b, kv heads, t, e)."""
    q, k = q.detach()[:_TEXTS], k.detach()[:_TEXTS]
    if q.dim() == 3:
        q, k = q[:, None], k[:, None]
    if q.dim() != 4 or q.shape[2] == 0 or k.shape[2] == 0:
        return
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s, t = q.shape[2], k.shape[2]
    some = torch.linspace(0, s - 1, min(_QUERIES, s), device=q.device).round().long()
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q[:, :, some].float() @ k.float().transpose(-1, -2))
    hidden = torch.zeros((), dtype=torch.bool, device=q.device)
    if causal or window is not None:
        hidden = ~attention_mask(some[:, None], torch.arange(t, device=q.device)[None], causal, window)
    if mask is not None:
        mask = mask.detach()
        mask = mask[:_TEXTS] if mask.dim() == 4 and mask.shape[0] > 1 else mask
        mask = mask[..., some, :] if mask.dim() >= 2 and mask.shape[-2] == s else mask
        if mask.dtype == torch.bool:
            hidden = hidden | ~mask
        else:
            scores = scores + mask.float()
    attention.add_scores(scores.masked_fill(hidden, -math.inf), some if s == t else None)


def add_softmax(attention: AttentionAccumulator, scores: Tensor, heads: int) -> None:
    """Look at some rows of the scores that softmax is given over keys, (b, h, s, t) or (b * h, s, t)."""
    scores = scores.detach()
    if scores.dim() == 3:
        scores = scores.unflatten(0, (-1, heads if len(scores) % heads == 0 else 1))
    s, t = scores.shape[-2:]
    if scores.numel() == 0:
        return
    some = torch.linspace(0, s - 1, min(_QUERIES, s), device=scores.device).round().long()
    attention.add_scores(scores[:_TEXTS, :, some].float(), some if s == t else None)
