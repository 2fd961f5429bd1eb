"""Whether gradients are emptied between steps, or pile up: told by one matrix, the first that gets a gradient."""

import torch
from torch import Tensor

_SAMPLE = 256
"""So many of its numbers are kept."""

_NEAR = 1e-2
"""Two gradients are the same if they are so much of their size apart: half types round by less."""

_SAME, _OTHER = 1 - 1e-4, 0.99
"""The cosines of gradients that are the same but for a factor, as clipping has one, and of those that are not."""


class ZeroGradTracker:
    """Holds the gradient that a step is made with against those that came since the step before.

    If they were emptied between, it is the sum of what came since, but for a factor. If not, it is that and what was
    there before. What fits neither, since somebody else has changed the gradients, is not judged.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._judge: Tensor | None = None
        self._before: Tensor | None = None
        self._since: Tensor | None = None

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """A gradient came to a weight."""
        if gradient.is_sparse or (self._judge is not None and parameter is not self._judge):
            return
        if self._judge is None and gradient.dim() >= 2 and bool(_sample(gradient).any()):
            self._judge = parameter  # a bias of two classes has a gradient of one direction only
        if parameter is self._judge:
            self._since = _sample(gradient) if self._since is None else self._since + _sample(gradient)

    def take_step(self, parameters: list[Tensor]) -> None:
        """An optimiser that has these weights is about to step."""
        judge, since = self._judge, self._since
        if judge is None or since is None or judge.grad is None or not any(judge is p for p in parameters):
            return
        now = _sample(judge.grad)
        if self._before is not None:
            self.steps += _is_piled(now, self._before + since, since)
        self._before, self._since = now, None


def _sample(gradient: Tensor) -> Tensor:
    """Some of its numbers, always the same ones, in memory of their own."""
    flat = gradient.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))].to(torch.float64, copy=True)


def _is_piled(now: Tensor, whole: Tensor, since: Tensor) -> bool:
    if _is_near(now, whole):
        return not _is_near(now, since)
    return _cosine(now, whole) >= _SAME and _cosine(now, since) < _OTHER  # clipped


def _is_near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= _NEAR * float(b.norm())


def _cosine(a: Tensor, b: Tensor) -> float:
    size = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / size if size > 0 else 0.0
