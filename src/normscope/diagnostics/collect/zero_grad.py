"""Detect a missing zero_grad: check one weight matrix, the first that receives a gradient."""

import torch
from torch import Tensor

from normscope.diagnostics.collect.tensors import sample_elements
from normscope.tracing.sharded import local_part

_SAMPLE = 256
"""Elements of the gradient that are kept."""

_TOLERANCE = 1e-2
"""Relative difference below which two gradients are equal. Half precision rounds by less."""

_PARALLEL, _NOT_PARALLEL = 1 - 1e-4, 0.99
"""Cosine similarity above which gradients are equal up to a factor, as after clipping, and below which they are not."""


class ZeroGradTracker:
    """Compare the gradient of each optimizer step with the gradients that arrived since the step before.

    After zero_grad the gradient is their sum, up to a factor. Without zero_grad it also contains the gradient of the
    step before. If neither fits, something else changed the gradients, and the step is not counted.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._parameter: Tensor | None = None
        self._before: Tensor | None = None
        self._since: Tensor | None = None

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add a gradient that a parameter received."""
        if gradient.is_sparse or (self._parameter is not None and parameter is not self._parameter):
            return
        if self._parameter is None and gradient.dim() >= 2 and bool(_sample(gradient).any()):
            self._parameter = parameter  # no bias: that of two classes has gradients of one direction only
        if parameter is self._parameter:
            self._since = _sample(gradient) if self._since is None else self._since + _sample(gradient)

    def take_step(self, parameters: list[Tensor]) -> None:
        """Check the gradient before an optimizer steps these parameters."""
        parameter, since = self._parameter, self._since
        if parameter is None or since is None or parameter.grad is None or not any(parameter is p for p in parameters):
            return
        now = _sample(local_part(parameter.grad))
        if self._before is not None:
            self.steps += _is_accumulated(now, self._before + since, since)
        self._before, self._since = now, None


def _sample(gradient: Tensor) -> Tensor:
    return sample_elements(gradient, _SAMPLE).to(torch.float64, copy=True)


def _is_accumulated(now: Tensor, whole: Tensor, since: Tensor) -> bool:
    if _is_close(now, whole):
        return not _is_close(now, since)
    return _cosine(now, whole) >= _PARALLEL and _cosine(now, since) < _NOT_PARALLEL  # clipped


def _is_close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= _TOLERANCE * float(b.norm())


def _cosine(a: Tensor, b: Tensor) -> float:
    size = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / size if size > 0 else 0.0
