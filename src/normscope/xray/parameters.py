"""What happens to the weights: their gradients as they come, and by how much a step changes them."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normscope.kernels.moments import Moments, moments_of
from normscope.xray import record
from normscope.xray.kinds import is_linear
from normscope.xray.tally import signal_of
from normscope.xray.tensors import is_measurable

_SAMPLE = 1 << 14
"""Of so many numbers of a weight a copy is kept, to see how a step changes it."""


@dataclass
class _Watched:
    parameter: nn.Parameter
    name: str
    before: Tensor
    gradient: Moments | None = None
    gradients: int = 0
    updates: list[float] = field(default_factory=list)
    optimised: bool = False


class ParameterWatch:
    """Watches all parameters of a model, each once, under its first name."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._watched: dict[int, _Watched] = {}
        self._handles: list[Any] = []
        self.steps: list[record.Step] = []

    @property
    def backwards(self) -> int:
        """How many backward passes there were: as many as any parameter got gradients."""
        return max((watched.gradients for watched in self._watched.values()), default=0)

    def start(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._watched[id(parameter)] = _Watched(parameter, name, _sample(parameter))
            if parameter.requires_grad and parameter.is_leaf:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._take_gradient))
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self.steps:  # an optimiser that is not torch's may have stepped
            for watched in self._watched.values():
                _add_update(watched, only_if_changed=True)

    def _take_gradient(self, parameter: Tensor) -> None:
        watched = self._watched.get(id(parameter))
        if watched is None or parameter.grad is None or not is_measurable(parameter.grad):
            return
        with torch._C.DisableTorchFunction():
            found = moments_of(parameter.grad)
        watched.gradients += 1
        watched.gradient = found if watched.gradient is None else watched.gradient.joined(found)

    def _before_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in _parameters_of(optimiser):
            watched = self._watched.get(id(parameter))
            if watched is not None:
                watched.before, watched.optimised = _sample(parameter), True

    def _after_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        ours = [p for p in _parameters_of(optimiser) if id(p) in self._watched]
        if not ours:
            return
        for parameter in ours:
            _add_update(self._watched[id(parameter)])
        rates = [float(group.get("lr", 0.0)) for group in optimiser.param_groups]
        full = [float(group["initial_lr"]) for group in optimiser.param_groups if "initial_lr" in group]
        counts = [state["step"] for state in optimiser.state.values() if isinstance(state, dict) and "step" in state]
        self.steps.append(
            record.Step(
                optimiser=type(optimiser).__name__,
                lr=max(rates, default=0.0),
                number=int(max(float(count) for count in counts)) if counts else None,
                rises_to=max(full) if full else None,
            )
        )

    def of(self, module: nn.Module, prefix: str) -> tuple[record.Parameter, ...]:
        """The records of a module's own parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            watched = self._watched.get(id(parameter))
            if watched is not None and is_measurable(parameter):
                found.append(self._finish(module, name, f"{prefix}.{name}" if prefix else name, watched))
        return tuple(found)

    def _finish(self, module: nn.Module, name: str, full: str, watched: _Watched) -> record.Parameter:
        parameter = watched.parameter
        with torch._C.DisableTorchFunction():
            values = moments_of(parameter)
        signal = signal_of(values)
        assert signal is not None
        return record.Parameter(
            name=name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            trained=parameter.requires_grad,
            values=signal,
            gradient=signal_of(watched.gradient),
            update=sum(watched.updates) / len(watched.updates) if watched.updates else None,
            optimised=watched.optimised if self.steps else None,
            same_as=None if full == watched.name else watched.name,
            fingerprint=_fingerprint(parameter) if values.least < values.greatest else None,
            rows_alike=values.least < values.greatest and _rows_alike(parameter),
            predicted_gain=_predicted_gain(module, parameter, values) if name == "weight" else None,
        )


def _parameters_of(optimiser: Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _sample(parameter: Tensor) -> Tensor:
    """Some of its numbers, always the same ones."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))].clone()


def _add_update(watched: _Watched, only_if_changed: bool = False) -> None:
    now = _sample(watched.parameter)
    if now.shape != watched.before.shape or (only_if_changed and torch.equal(now, watched.before)):
        return
    size = float(watched.before.double().square().mean().sqrt())
    change = float((now.double() - watched.before.double()).square().mean().sqrt())
    watched.updates.append(_update(change, size))
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
    if not is_linear(module) or values.count == 0:
        return None
    turned = type(module).__name__ == "Conv1D"  # of transformers: (in, out)
    fan_in = weight.shape[0] if turned else weight.numel() // weight.shape[0]
    return float((fan_in * values.rms**2) ** 0.5)
