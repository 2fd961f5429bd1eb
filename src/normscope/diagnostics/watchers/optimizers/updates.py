"""Measure the parts of an update: gradient, weight decay, eps."""

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameter_values import sample_values
from normscope.diagnostics.collect.tensors import sample_elements
from normscope.diagnostics.collect.tracked_parameter import TrackedParameter
from normscope.diagnostics.watchers.optimizers.seen import SeenOptimizer
from normscope.tracing.sharded import local_part

_SAMPLE = 256
"""Elements of a gradient that are compared with those of the step before."""

_MIN_CLIPPED, _CLIPPED = 32, 0.9
"""Elements, and the fraction of them that have the same size after clipping each."""

_MEAN_SQUARES = ("exp_avg_sq", "square_avg", "sum")
"""Names of the averages of squared gradients in the states of torch's optimizers."""


def has_gradient(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None:
        return False
    gradient = local_part(gradient)
    return gradient.is_sparse or bool(gradient.any())


def gradient_sample(tracked: list[TrackedParameter]) -> Tensor | None:
    """Some elements of the first nonzero gradient; None if there is none."""
    for one in tracked:
        if one.parameter.grad is not None and has_gradient(one.parameter):
            gradient = local_part(one.parameter.grad)
            return torch.zeros(0) if gradient.is_sparse else sample_elements(gradient, _SAMPLE).clone()
    return None


def sum_of_updates(tracked: list[TrackedParameter]) -> float:
    """A sum that each step raises which changes a parameter; NaN after one that made it non-finite."""
    return sum(one.update_rms for one in tracked)


def as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Tensor) and not isinstance(value, bool) else None


def settings(optimizer: Optimizer) -> dict[str, Any]:
    return {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}


def is_decoupled(kind: str, group: dict[str, Any]) -> bool:
    return kind == "AdamW" or bool(group.get("decoupled_weight_decay"))


def is_adaptive(optimizer: Optimizer) -> bool:
    return any(name in state for state in list(optimizer.state.values())[:1] for name in _MEAN_SQUARES)


def measure_update(seen: SeenOptimizer, optimizer: Optimizer) -> None:
    """Compare the parts of the update of some weight matrices."""
    decay: list[float] = []
    eps: list[float] = []
    moved: list[float] = []
    largest: set[float] = set()
    for tracked, before in zip(seen.matrices, seen.before, strict=True):
        parameter = tracked.parameter
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        gradient = None if parameter.grad is None else local_part(parameter.grad)
        if gradient is None or gradient.is_sparse:
            continue
        old, new = before.double(), sample_values(local_part(parameter)).double()
        slope = sample_elements(gradient, len(before)).double()
        if old.shape != new.shape or slope.shape != old.shape or not slope.any():
            continue
        if parameter.dtype in (torch.float16, torch.bfloat16):
            moved.append(float(((old != new) & (slope != 0)).sum() / (slope != 0).sum()))
        largest.add(_value_limit(slope))
        decay += _decay_share(seen, group, old, new, slope)
        eps += _eps_share(optimizer.state.get(parameter, {}), group, len(before))
    if decay:
        seen.decay_share = max(seen.decay_share or 0.0, median(decay))
    is_clipped = len(largest) == 1 and largest != {0.0}
    seen.clipped = largest.pop() if is_clipped and (seen.clipped or seen.steps == 1) else None
    if eps:
        seen.eps_share = median(eps)
    if moved:
        seen.moved = max(seen.moved or 0.0, median(moved))


def _decay_share(
    seen: SeenOptimizer, group: dict[str, Any], old: Tensor, new: Tensor, slope: Tensor
) -> Iterator[float]:
    """Weight decay relative to the gradient, in the update of one weight, for the optimizers of torch."""
    decay = as_number(group.get("weight_decay")) or 0.0
    if not decay or not seen.is_torch:
        return
    shrunk, rest = decay * old, slope
    if is_decoupled(seen.kind, group):
        shrunk = decay * float(group["lr"]) * old
        rest = new - old + shrunk
    size = float(rest.norm())
    yield float(shrunk.norm()) / size if size > 0 else math.inf if shrunk.any() else 0.0


def _eps_share(state: dict[str, Any], group: dict[str, Any], count: int) -> Iterator[float]:
    """eps over the median of the root of the average squared gradient, of one weight."""
    name = next((name for name in _MEAN_SQUARES if isinstance(state.get(name), Tensor)), None)
    eps = as_number(group.get("eps"))
    if name is None or not eps:
        return
    squares = sample_elements(local_part(state[name]), max(count, 1)).double()
    squares = squares[squares > 0]
    if name == "exp_avg_sq" and "step" in state and "betas" in group:
        squares = squares / (1 - float(group["betas"][1]) ** max(1.0, float(state["step"])))
    if squares.numel():
        yield eps / float(squares.median().sqrt())


def _value_limit(gradient: Tensor) -> float:
    """The size that nearly all elements have, as after clip_grad_value_; 0 if they differ."""
    sizes = gradient[gradient != 0].abs()
    limit = sizes.max()
    return float(limit) if len(sizes) >= _MIN_CLIPPED and float((sizes == limit).double().mean()) >= _CLIPPED else 0.0
