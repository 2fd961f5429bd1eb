"""Track parameters: their gradients as they arrive, and how much an optimizer step changes them."""

import hashlib
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normscope.diagnostics import record
from normscope.diagnostics.collect.accumulators import tensor_stats
from normscope.diagnostics.collect.products import UnregisteredParameters
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.tensors import is_measurable, sample_elements
from normscope.diagnostics.collect.zero_grad import ZeroGradTracker
from normscope.diagnostics.module_names import join_names
from normscope.ops.moments import Moments, compute_moments
from normscope.tracing.module_kinds import is_linear
from normscope.tracing.tracer import Hook, HookHandles

_SAMPLE = 1 << 14
"""Elements of a parameter that are copied, to measure how a step changes it."""

_MAX_STEPS = 1000
"""Optimizer steps that are recorded one by one."""


@dataclass
class _TrackedParameter:
    parameter: nn.Parameter
    name: str
    before: Tensor
    gradient: Moments | None = None
    gradients: int = 0
    steps: int = 0
    update_ratios: float = 0.0
    """The sum over steps of the rms of the update, relative to the rms of the parameter."""
    update_rms: float = 0.0
    """The sum over steps of the rms of the update."""
    in_optimizer: bool = False


class ParameterTracker:
    """Track all parameters of a model, each once, under its first name."""

    def __init__(self, model: nn.Module, session: XraySession, unregistered: UnregisteredParameters) -> None:
        self._model, self._session, self._unregistered = model, session, unregistered
        self._tracked: dict[int, _TrackedParameter] = {}
        self._handles = HookHandles()
        self.steps: list[record.StepRecord] = []
        self.foreign_optimizer_steps = 0
        self.zero_grad = ZeroGradTracker()

    @property
    def backward_passes(self) -> int:
        """The number of backward passes: the most gradients that any parameter received."""
        return max((tracked.gradients for tracked in self._tracked.values()), default=0)

    def start(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._track(name, parameter)
        for name, module in self._model.named_modules():
            if any(map(is_lazy, module._parameters.values())):
                self._handles.add(module.register_forward_hook(Hook(partial(self._track_lazy, name))))
        self._handles.add(register_optimizer_step_pre_hook(self._before_step))
        self._handles.add(register_optimizer_step_post_hook(self._after_step))

    def _track(self, name: str, parameter: nn.Parameter) -> None:
        if is_lazy(parameter) or not parameter.numel():
            return
        if not is_measurable(parameter):
            what = "parameters on the meta device or without floating-point values"
            self._session.notice(f"{what} were not measured ({parameter.dtype})")
            return
        self._tracked[id(parameter)] = tracked = _TrackedParameter(parameter, name, _sample(parameter))
        if parameter.requires_grad and parameter.is_leaf:
            self._handles.add(parameter.register_hook(Hook(partial(self._take_gradient, tracked))))

    def _track_lazy(self, name: str, module: nn.Module, *_: Any) -> None:
        """Track the parameters of a lazy module after its first call."""
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in self._tracked:
                self._session.guarded("a lazy parameter", self._track, join_names(name, own), parameter)

    def stop(self) -> None:
        self._handles.remove()
        if not self.steps:  # an optimizer that is not from torch may have stepped
            for tracked in self._tracked.values():
                self._session.guarded("an optimizer step", _add_update, tracked, True)

    def _take_gradient(self, tracked: _TrackedParameter, gradient: Tensor) -> None:
        """Add the gradient of one backward pass, without what was accumulated before."""
        if self._session.is_active and (gradient.is_sparse or self._session.is_loss_gradient(gradient)):
            self._session.guarded(f"the gradient of `{tracked.name}`", _add_gradient, tracked, gradient)
            self._session.guarded(f"the gradient of `{tracked.name}`", self.zero_grad.add, tracked.parameter, gradient)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in _parameters_of(optimizer):
            tracked = self._tracked.get(id(parameter))
            if tracked is not None:
                self._session.guarded("an optimizer step", _begin_update, tracked)
        self._session.guarded("an optimizer step", self.zero_grad.take_step, _parameters_of(optimizer))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._session.guarded(f"a step of {type(optimizer).__name__}", self._take_step, optimizer)

    def _take_step(self, optimizer: Optimizer) -> None:
        parameters = _parameters_of(optimizer)
        self._unregistered.take_step(parameters)
        tracked = [p for p in parameters if id(p) in self._tracked]
        if not tracked:
            trained = [w.parameter for w in self._tracked.values() if w.parameter.requires_grad]
            self.foreign_optimizer_steps += bool(trained) and _shapes(parameters) == _shapes(trained)
            return
        if not isinstance(optimizer, torch.optim.LBFGS):  # one step of it is a line search of many
            for parameter in tracked:
                _add_update(self._tracked[id(parameter)])
        if len(self.steps) >= _MAX_STEPS:
            self._session.notice(f"learning rates were recorded for the first {_MAX_STEPS} optimizer steps only")
            return
        groups, states = optimizer.param_groups, optimizer.state.values()
        lr = max((float(group.get("lr", 0.0)) for group in groups), default=0.0)
        number = max((float(s["step"]) for s in states if isinstance(s, dict) and "step" in s), default=None)
        peak_lr = max((float(group["initial_lr"]) for group in groups if "initial_lr" in group), default=None)
        number = None if number is None else int(number)
        self.steps.append(record.StepRecord(type(optimizer).__name__, lr, number, peak_lr))

    def of(self, module: nn.Module, prefix: str) -> tuple[record.ParameterRecord, ...]:
        """Return the records of a module's own parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            tracked = self._tracked.get(id(parameter))
            if tracked is not None and is_measurable(parameter):
                full = join_names(prefix, name)
                where = f"the parameter `{full}`"
                found.append(self._session.guarded(where, self._finish, module, name, full, tracked))
        return tuple(parameter for parameter in found if parameter is not None)

    def _finish(self, module: nn.Module, name: str, full: str, tracked: _TrackedParameter) -> record.ParameterRecord:
        parameter = tracked.parameter
        values = compute_moments(parameter)
        return record.ParameterRecord(
            name=name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            values=tensor_stats(values),
            gradient=None if tracked.gradient is None else tensor_stats(tracked.gradient),
            update_ratio=tracked.update_ratios / tracked.steps if tracked.steps else None,
            in_optimizer=tracked.in_optimizer if self.steps else None,
            alias_of=None if full == tracked.name else tracked.name,
            content_hash=_content_hash(parameter) if values.minimum < values.maximum else None,
            identical_rows=values.minimum < values.maximum and _has_identical_rows(parameter),
            predicted_gain=_predicted_gain(module, parameter, values) if name == "weight" else None,
            update_rms=tracked.update_rms / tracked.steps if tracked.steps else None,
        )


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shapes(parameters: list[Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(parameter.shape) for parameter in parameters)


def _add_gradient(tracked: _TrackedParameter, gradient: Tensor) -> None:
    found = _sparse_moments(gradient) if gradient.is_sparse else compute_moments(gradient)
    tracked.gradients += 1
    tracked.gradient = found if tracked.gradient is None else tracked.gradient.merge(found)


def _sparse_moments(gradient: Tensor) -> Moments:
    """Return the moments of a sparse gradient, including the zeros of absent rows."""
    values = gradient.coalesce().values()
    zeros = gradient.numel() - values.numel()
    return compute_moments(values).merge(Moments(count=zeros, minimum=0.0, maximum=0.0, zeros=zeros))


def _sample(parameter: Tensor) -> Tensor:
    return sample_elements(parameter, _SAMPLE).clone()


def _begin_update(tracked: _TrackedParameter) -> None:
    tracked.in_optimizer = True
    tracked.before = _sample(tracked.parameter)


def _add_update(tracked: _TrackedParameter, only_if_changed: bool = False) -> None:
    now = _sample(tracked.parameter)
    if now.shape != tracked.before.shape or (only_if_changed and torch.equal(now, tracked.before)):
        return
    size = float(tracked.before.double().square().mean().sqrt())
    change = float((now.double() - tracked.before.double()).square().mean().sqrt())
    tracked.update_ratios += _update_ratio(change, size)
    tracked.update_rms += change
    tracked.steps += 1
    tracked.before = now


def _update_ratio(change: float, size: float) -> float:
    """Return the relative size of an update: NaN if the step made the parameter non-finite, 0 if it was zero before."""
    if not math.isfinite(size):  # non-finite before this step
        return 0.0
    if not math.isfinite(change):
        return math.nan
    return change / size if size > 0 else 0.0


def _content_hash(parameter: Tensor) -> str:
    data = _sample(parameter).double().cpu().numpy().tobytes()
    return hashlib.blake2b(data + repr(tuple(parameter.shape)).encode(), digest_size=12).hexdigest()


def _has_identical_rows(parameter: Tensor) -> bool:
    if parameter.dim() < 2 or parameter.shape[0] < 2:
        return False
    rows = parameter.detach().flatten(1)
    return bool(torch.equal(rows[0], rows[1])) and bool((rows[1:] == rows[:1]).all())


def _predicted_gain(module: nn.Module, weight: Tensor, values: Moments) -> float | None:
    if isinstance(module, torch.jit.ScriptModule) or not is_linear(module) or values.count == 0:
        return None
    if isinstance(module, nn.modules.conv._ConvTransposeNd):  # (in, out, ...); one in `stride` positions contributes
        fan_in = weight.numel() / weight.shape[1] / module.groups / math.prod(module.stride)
    elif type(module).__name__ == "Conv1D":  # Hugging Face's: (in, out)
        fan_in = weight.shape[0]
    else:
        fan_in = weight.numel() / weight.shape[0]
    return float((fan_in * values.rms**2) ** 0.5)
