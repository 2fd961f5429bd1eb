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
from normscope.diagnostics.collect.session import Scene
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.diagnostics.collect.unregistered_parameters import Strangers
from normscope.diagnostics.collect.zero_grad import Piling
from normscope.ops.moments import Moments, compute_moments

_SAMPLE = 1 << 14
"""Of so many numbers of a weight a copy is kept, to see how a step changes it."""

_STEPS = 1000
"""So many have a record of their own."""


@dataclass
class _Watched:
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


class ParameterWatch:
    """Watches all parameters of a model, each once, under its first name."""

    def __init__(self, model: nn.Module, scene: Scene, strangers: Strangers | None = None) -> None:
        self._model, self._scene, self._strangers = model, scene, strangers
        self._watched: dict[int, _Watched] = {}
        self._handles: list[Any] = []
        self.steps: list[record.StepRecord] = []
        self.strange_steps = 0
        self.piling = Piling()

    @property
    def backwards(self) -> int:
        """How many backward passes there were: as many as any parameter got gradients."""
        return max((watched.gradients for watched in self._watched.values()), default=0)

    def start(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._watch(name, parameter)
        for name, module in self._model.named_modules():
            if any(map(is_lazy, module._parameters.values())):
                self._handles.append(module.register_forward_hook(Hook(partial(self._watch_late, name))))
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def _watch(self, name: str, parameter: nn.Parameter) -> None:
        if is_lazy(parameter) or not parameter.numel():
            return
        if not is_measurable(parameter):
            self._scene.notice(f"weights without memory or without real numbers show no figures ({parameter.dtype})")
            return
        self._watched[id(parameter)] = watched = _Watched(parameter, name, _sample(parameter))
        if parameter.requires_grad and parameter.is_leaf:
            self._handles.append(parameter.register_hook(Hook(partial(self._take_gradient, watched))))

    def _watch_late(self, name: str, module: nn.Module, *_: Any) -> None:
        """A lazy module has its weights now."""
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in self._watched:
                self._scene.look("a lazy weight", self._watch, f"{name}.{own}" if name else own, parameter)

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self.steps:  # an optimiser that is not torch's may have stepped
            for watched in self._watched.values():
                self._scene.look("a step", _add_update, watched, True)

    def _take_gradient(self, watched: _Watched, gradient: Tensor) -> None:
        """What this backward pass adds to the gradient of a parameter, whatever was there before."""
        if self._scene.looking and (gradient.is_sparse or self._scene.counts(gradient)):
            self._scene.look(f"the gradient of `{watched.name}`", _add_gradient, watched, gradient)
            self._scene.look(f"the gradient of `{watched.name}`", self.piling.add, watched.parameter, gradient)

    def _before_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in _parameters_of(optimiser):
            watched = self._watched.get(id(parameter))
            if watched is not None:
                self._scene.look("a step", _begin_update, watched)
        self._scene.look("a step", self.piling.take_step, _parameters_of(optimiser))

    def _after_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        self._scene.look(f"a step of {type(optimiser).__name__}", self._take_step, optimiser)

    def _take_step(self, optimiser: Optimizer) -> None:
        theirs = _parameters_of(optimiser)
        if self._strangers is not None:
            self._strangers.take_step(theirs)
        ours = [p for p in theirs if id(p) in self._watched]
        if not ours:
            trained = [w.parameter for w in self._watched.values() if w.parameter.requires_grad]
            self.strange_steps += bool(trained) and _shapes(theirs) == _shapes(trained)
            return
        if not isinstance(optimiser, torch.optim.LBFGS):  # one step of it is many, each as long as the loss allows
            for parameter in ours:
                _add_update(self._watched[id(parameter)])
        if len(self.steps) >= _STEPS:
            self._scene.notice(f"after the first {_STEPS} steps of optimisers their rates are not kept")
            return
        rates = [float(group.get("lr", 0.0)) for group in optimiser.param_groups]
        full = [float(group["initial_lr"]) for group in optimiser.param_groups if "initial_lr" in group]
        counts = [state["step"] for state in optimiser.state.values() if isinstance(state, dict) and "step" in state]
        self.steps.append(
            record.StepRecord(
                optimizer=type(optimiser).__name__,
                lr=max(rates, default=0.0),
                number=int(max(float(count) for count in counts)) if counts else None,
                peak_lr=max(full) if full else None,
            )
        )

    def of(self, module: nn.Module, prefix: str) -> tuple[record.ParameterRecord, ...]:
        """The records of a module's own parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            watched = self._watched.get(id(parameter))
            if watched is not None and is_measurable(parameter):
                full = f"{prefix}.{name}" if prefix else name
                found.append(self._scene.look(f"the weight `{full}`", self._finish, module, name, full, watched))
        return tuple(parameter for parameter in found if parameter is not None)

    def _finish(self, module: nn.Module, name: str, full: str, watched: _Watched) -> record.ParameterRecord:
        parameter = watched.parameter
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
            gradient=signal_of(watched.gradient),
            update_ratio=watched.updates / watched.steps if watched.steps else None,
            in_optimizer=watched.optimised if self.steps else None,
            alias_of=None if full == watched.name else watched.name,
            content_hash=_fingerprint(parameter) if values.least < values.greatest else None,
            identical_rows=values.least < values.greatest and _rows_alike(parameter),
            predicted_gain=_predicted_gain(module, parameter, values) if name == "weight" else None,
            update_rms=watched.changes / watched.steps if watched.steps else None,
        )


def _parameters_of(optimiser: Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _shapes(parameters: list[Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(parameter.shape) for parameter in parameters)


def _add_gradient(watched: _Watched, gradient: Tensor) -> None:
    with torch._C.DisableTorchFunction():
        found = _sparse_moments(gradient) if gradient.is_sparse else compute_moments(gradient)
    watched.gradients += 1
    watched.gradient = found if watched.gradient is None else watched.gradient.joined(found)


def _sparse_moments(gradient: Tensor) -> Moments:
    """Those of the rows that a table was asked for, and of zeros for all others."""
    numbers = gradient.coalesce().values()
    zeros = gradient.numel() - numbers.numel()
    return compute_moments(numbers).joined(Moments(count=zeros, least=0.0, greatest=0.0, zeros=zeros))


def _sample(parameter: Tensor) -> Tensor:
    """Some of its numbers, always the same ones."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))].clone()


def _begin_update(watched: _Watched) -> None:
    watched.optimised = True
    watched.before = _sample(watched.parameter)


def _add_update(watched: _Watched, only_if_changed: bool = False) -> None:
    now = _sample(watched.parameter)
    if now.shape != watched.before.shape or (only_if_changed and torch.equal(now, watched.before)):
        return
    size = float(watched.before.double().square().mean().sqrt())
    change = float((now.double() - watched.before.double()).square().mean().sqrt())
    watched.updates += _update(change, size)
    watched.changes += change
    watched.steps += 1
    watched.before = now


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
