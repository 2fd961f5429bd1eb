"""What happens to the weights: their gradients as they come, and by how much a step changes them."""

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
from normscope.diagnostics.collect.accumulators import signal_of
from normscope.diagnostics.collect.hooks import Hook
from normscope.diagnostics.collect.kinds import is_linear
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.diagnostics.collect.unregistered_parameters import UnregisteredParameters
from normscope.diagnostics.collect.zero_grad import ZeroGradTracker
from normscope.ops.moments import Moments, compute_moments

_SAMPLE = 1 << 14
"""Of so many numbers of a weight a copy is kept, to see how a step changes it."""

_STEPS = 1000
"""So many have a record of their own."""


@dataclass
class _TrackedParameter:
    parameter: nn.Parameter
    name: str
    before: Tensor
    gradient: Moments | None = None
    gradients: int = 0
    steps: int = 0
    updates: float = 0.0
    """Of all steps, the change over the size before, summed."""
    changes: float = 0.0
    """The rms of all steps' changes, summed."""
    optimised: bool = False


class ParameterTracker:
    """Watches all parameters of a model, each once, under its first name."""

    def __init__(
        self, model: nn.Module, session: XraySession, unregistered: UnregisteredParameters | None = None
    ) -> None:
        self._model, self._session, self._unregistered = model, session, unregistered
        self._tracked: dict[int, _TrackedParameter] = {}
        self._handles: list[Any] = []
        self.steps: list[record.StepRecord] = []
        self.strange_steps = 0
        self.zero_grad = ZeroGradTracker()

    @property
    def backwards(self) -> int:
        """How many backward passes there were: as many as any parameter got gradients."""
        return max((tracked.gradients for tracked in self._tracked.values()), default=0)

    def start(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._track(name, parameter)
        for name, module in self._model.named_modules():
            if any(map(is_lazy, module._parameters.values())):
                self._handles.append(module.register_forward_hook(Hook(partial(self._track_lazy, name))))
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def _track(self, name: str, parameter: nn.Parameter) -> None:
        if is_lazy(parameter) or not parameter.numel():
            return
        if not is_measurable(parameter):
            self._session.notice(f"weights without memory or without real numbers show no figures ({parameter.dtype})")
            return
        self._tracked[id(parameter)] = tracked = _TrackedParameter(parameter, name, _sample(parameter))
        if parameter.requires_grad and parameter.is_leaf:
            self._handles.append(parameter.register_hook(Hook(partial(self._take_gradient, tracked))))

    def _track_lazy(self, name: str, module: nn.Module, *_: Any) -> None:
        """A lazy module has its weights now."""
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in self._tracked:
                self._session.guarded("a lazy weight", self._track, f"{name}.{own}" if name else own, parameter)

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self.steps:  # an optimiser that is not torch's may have stepped
            for tracked in self._tracked.values():
                self._session.guarded("a step", _add_update, tracked, True)

    def _take_gradient(self, tracked: _TrackedParameter, gradient: Tensor) -> None:
        """What this backward pass adds to the gradient of a parameter, whatever was there before."""
        if self._session.is_active and (gradient.is_sparse or self._session.is_loss_gradient(gradient)):
            self._session.guarded(f"the gradient of `{tracked.name}`", _add_gradient, tracked, gradient)
            self._session.guarded(f"the gradient of `{tracked.name}`", self.zero_grad.add, tracked.parameter, gradient)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in _parameters_of(optimizer):
            tracked = self._tracked.get(id(parameter))
            if tracked is not None:
                self._session.guarded("a step", _begin_update, tracked)
        self._session.guarded("a step", self.zero_grad.take_step, _parameters_of(optimizer))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._session.guarded(f"a step of {type(optimizer).__name__}", self._take_step, optimizer)

    def _take_step(self, optimizer: Optimizer) -> None:
        theirs = _parameters_of(optimizer)
        if self._unregistered is not None:
            self._unregistered.take_step(theirs)
        ours = [p for p in theirs if id(p) in self._tracked]
        if not ours:
            trained = [w.parameter for w in self._tracked.values() if w.parameter.requires_grad]
            self.strange_steps += bool(trained) and _shapes(theirs) == _shapes(trained)
            return
        if not isinstance(optimizer, torch.optim.LBFGS):  # one step of it is many, each as long as the loss allows
            for parameter in ours:
                _add_update(self._tracked[id(parameter)])
        if len(self.steps) >= _STEPS:
            self._session.notice(f"after the first {_STEPS} steps of optimisers their rates are not kept")
            return
        rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        full = [float(group["initial_lr"]) for group in optimizer.param_groups if "initial_lr" in group]
        step_counts = [
            state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state
        ]
        self.steps.append(
            record.StepRecord(
                optimizer=type(optimizer).__name__,
                lr=max(rates, default=0.0),
                number=int(max(float(count) for count in step_counts)) if step_counts else None,
                peak_lr=max(full) if full else None,
            )
        )

    def of(self, module: nn.Module, prefix: str) -> tuple[record.ParameterRecord, ...]:
        """The records of a module's own parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            tracked = self._tracked.get(id(parameter))
            if tracked is not None and is_measurable(parameter):
                full = f"{prefix}.{name}" if prefix else name
                found.append(self._session.guarded(f"the weight `{full}`", self._finish, module, name, full, tracked))
        return tuple(parameter for parameter in found if parameter is not None)

    def _finish(self, module: nn.Module, name: str, full: str, tracked: _TrackedParameter) -> record.ParameterRecord:
        parameter = tracked.parameter
        with torch._C.DisableTorchFunction():
            values = compute_moments(parameter)
        signal = signal_of(values)
        assert signal is not None
        return record.ParameterRecord(
            name=name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            values=signal,
            gradient=signal_of(tracked.gradient),
            update_ratio=tracked.updates / tracked.steps if tracked.steps else None,
            in_optimizer=tracked.optimised if self.steps else None,
            alias_of=None if full == tracked.name else tracked.name,
            content_hash=_fingerprint(parameter) if values.minimum < values.maximum else None,
            identical_rows=values.minimum < values.maximum and _rows_alike(parameter),
            predicted_gain=_predicted_gain(module, parameter, values) if name == "weight" else None,
            update_rms=tracked.changes / tracked.steps if tracked.steps else None,
        )


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shapes(parameters: list[Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(parameter.shape) for parameter in parameters)


def _add_gradient(tracked: _TrackedParameter, gradient: Tensor) -> None:
    with torch._C.DisableTorchFunction():
        found = _sparse_moments(gradient) if gradient.is_sparse else compute_moments(gradient)
    tracked.gradients += 1
    tracked.gradient = found if tracked.gradient is None else tracked.gradient.merge(found)


def _sparse_moments(gradient: Tensor) -> Moments:
    """Those of the rows that a table was asked for, and of zeros for all others."""
    numbers = gradient.coalesce().values()
    zeros = gradient.numel() - numbers.numel()
    return compute_moments(numbers).merge(Moments(count=zeros, minimum=0.0, maximum=0.0, zeros=zeros))


def _sample(parameter: Tensor) -> Tensor:
    """Some of its numbers, always the same ones."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))].clone()


def _begin_update(tracked: _TrackedParameter) -> None:
    tracked.optimised = True
    tracked.before = _sample(tracked.parameter)


def _add_update(tracked: _TrackedParameter, only_if_changed: bool = False) -> None:
    now = _sample(tracked.parameter)
    if now.shape != tracked.before.shape or (only_if_changed and torch.equal(now, tracked.before)):
        return
    size = float(tracked.before.double().square().mean().sqrt())
    change = float((now.double() - tracked.before.double()).square().mean().sqrt())
    tracked.updates += _update(change, size)
    tracked.changes += change
    tracked.steps += 1
    tracked.before = now


def _update(change: float, size: float) -> float:
    """A step's change over the size before: nan if the step spoilt it, 0 where there is no size to compare with."""
    if not math.isfinite(size):  # it was spoilt before this step
        return 0.0
    if not math.isfinite(change):
        return math.nan
    return change / size if size > 0 else 0.0


def _fingerprint(parameter: Tensor) -> str:
    numbers = _sample(parameter).double().cpu().numpy().tobytes()
    return hashlib.blake2b(numbers + repr(tuple(parameter.shape)).encode(), digest_size=12).hexdigest()


def _rows_alike(parameter: Tensor) -> bool:
    if parameter.dim() < 2 or parameter.shape[0] < 2:
        return False
    rows = parameter.detach().flatten(1)
    return bool(torch.equal(rows[0], rows[1])) and bool((rows[1:] == rows[:1]).all())


def _predicted_gain(module: nn.Module, weight: Tensor, values: Moments) -> float | None:
    if isinstance(module, torch.jit.ScriptModule) or not is_linear(module) or values.count == 0:
        return None
    if isinstance(module, nn.modules.conv._ConvTransposeNd):  # (in, out, ...), and of stride places only one is met
        fan_in = weight.numel() / weight.shape[1] / module.groups / math.prod(module.stride)
    elif type(module).__name__ == "Conv1D":  # of transformers: (in, out)
        fan_in = weight.shape[0]
    else:
        fan_in = weight.numel() / weight.shape[0]
    return float((fan_in * values.rms**2) ** 0.5)
