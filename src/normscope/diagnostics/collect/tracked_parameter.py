"""What an x-ray sees of one parameter: its gradients, and how much the steps change it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.parameter_values import ParameterValues, sample_values
from normscope.diagnostics.collect.tensors import sample_elements
from normscope.ops.moments import Moments, compute_moments
from normscope.tracing.sharded import local_part

_FEW = 64
"""Values that show whether a parameter changes at all."""


@dataclass
class TrackedParameter:
    """A parameter, and what was seen of it. Of a sharded one, `parameter` is the shard.

    Args:
        parameter, name: the parameter and its first name.
        before: some of its values before the next step.
        at_start: a few of its values when the x-ray began.
        gradient: statistics of its gradients.
        gradients: number of gradients it received.
        steps: number of steps that changed it.
        update_ratios: sum over steps of the rms of the update, relative to the rms of the parameter.
        update_rms: sum over steps of the rms of the update.
        in_optimizer: whether an optimizer that stepped holds it.
        whole: of a sharded parameter, the values of the whole in the last pass.
        whole_id: of a sharded parameter, the id of the whole one, to give it a hook once.
        initial: its values when the x-ray began; None if it had none yet.
    """

    parameter: nn.Parameter
    name: str
    before: Tensor
    at_start: Tensor
    gradient: Moments | None = None
    gradients: int = 0
    steps: int = 0
    update_ratios: float = 0.0
    update_rms: float = 0.0
    in_optimizer: bool = False
    whole: ParameterValues | None = None
    whole_id: int | None = None
    initial: ParameterValues | None = None

    @property
    def has_changed(self) -> bool:
        """Whether its values differ from those when the x-ray began."""
        return not torch.equal(few_values(self.parameter), self.at_start)

    def add_gradient(self, gradient: Tensor) -> None:
        found = _sparse_moments(gradient) if gradient.is_sparse else compute_moments(gradient)
        self.gradient = found if self.gradient is None else self.gradient.merge(found)

    def begin_update(self) -> None:
        """A step that is measured begins."""
        self.before = sample_values(local_part(self.parameter))

    def add_update(self, only_if_changed: bool = False) -> None:
        """Measure the change since the step before."""
        before, now = self.before, sample_values(local_part(self.parameter))
        if not now.numel() or now.shape != before.shape or (only_if_changed and torch.equal(now, before)):
            return
        size = float(before.double().square().mean().sqrt())
        change = float((now.double() - before.double()).square().mean().sqrt())
        self.update_ratios += _update_ratio(change, size)
        self.update_rms += change
        self.steps += 1
        self.before = now


def few_values(parameter: Tensor) -> Tensor:
    return sample_elements(local_part(parameter), _FEW).clone()


def _sparse_moments(gradient: Tensor) -> Moments:
    """Return the moments of a sparse gradient, including the zeros of absent rows."""
    values = gradient.coalesce().values()
    zeros = gradient.numel() - values.numel()
    return compute_moments(values).merge(Moments(count=zeros, minimum=0.0, maximum=0.0, zeros=zeros))


def _update_ratio(change: float, size: float) -> float:
    """Return the relative size of an update: NaN if the step made the parameter non-finite, 0 if it was zero before."""
    if not math.isfinite(size):  # non-finite before this step
        return 0.0
    if not math.isfinite(change):
        return math.nan
    return change / size if size > 0 else 0.0
