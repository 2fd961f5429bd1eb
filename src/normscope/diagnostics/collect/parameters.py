"""Track parameters: their gradients as they arrive, and how much an optimizer step changes them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normscope.diagnostics import record
from normscope.diagnostics.collect.accumulators import tensor_stats
from normscope.diagnostics.collect.parameter_values import measure_values, predicted_gain, sample_values
from normscope.diagnostics.collect.products import UnregisteredParameters
from normscope.diagnostics.collect.reduced_gradients import ReducedGradients
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.diagnostics.collect.tracked_parameter import TrackedParameter, few_values
from normscope.diagnostics.collect.wrappers import ParallelWrapper
from normscope.diagnostics.collect.zero_grad import ZeroGradTracker
from normscope.diagnostics.module_names import join_names
from normscope.tracing.sharded import is_dtensor, is_sharded_module, local_part, sharded_by_whole
from normscope.tracing.tracer import Hook, HookHandles

_MAX_STEPS = 1000
"""Optimizer steps that are recorded one by one."""


class ParameterTracker:
    """Track all parameters of a model, each once, under its first name.

    Args:
        model: the model, without wrappers.
        session: the session of the x-ray.
        unregistered: parameters that no module registers.
        wrapper: what distributes the model over ranks; by default, what is inside it.
    """

    def __init__(
        self,
        model: nn.Module,
        session: XraySession,
        unregistered: UnregisteredParameters,
        wrapper: ParallelWrapper | None = None,
    ) -> None:
        self._model, self._session, self._unregistered = model, session, unregistered
        self._wrapper = wrapper or ParallelWrapper(model, session)
        self.tracked: dict[int, TrackedParameter] = {}
        self._by_name: dict[str, TrackedParameter] = {}
        self._handles = HookHandles()
        self.steps: list[record.StepRecord] = []
        self.foreign_optimizer_steps = 0
        self.zero_grad = ZeroGradTracker()
        self._reduced = ReducedGradients(self._take_reduced)
        self.before_step: list[Callable[[Optimizer], None]] = []
        """Called before each step of an optimizer."""
        self.after_step: list[Callable[[Optimizer], None]] = []
        """Called after each step of an optimizer that holds parameters of the model."""
        self.after_any_step: list[Callable[[Optimizer], None]] = []
        """Called after each step of any optimizer."""

    @property
    def backward_passes(self) -> int:
        """The number of backward passes: the most gradients that any parameter received."""
        return max((tracked.gradients for tracked in self.tracked.values()), default=0)

    def start(self) -> None:
        shards = sharded_by_whole(self._model)
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            self._track(name, shards.get(id(parameter), parameter))
        for name, module in self._model.named_modules():
            if any(map(is_lazy, module._parameters.values())):
                self._handles.add(module.register_forward_hook(Hook(partial(self._track_lazy, name))))
            if is_sharded_module(module):
                self._handles.add(module.register_forward_pre_hook(Hook(partial(self._take_wholes, name))))
        if self._wrapper.may_reduce and not isinstance(self._model, torch.jit.ScriptModule):
            self._handles.add(self._model.register_forward_pre_hook(Hook(self._begin_pass)))
        self._handles.add(register_optimizer_step_pre_hook(self._before_step))
        self._handles.add(register_optimizer_step_post_hook(self._after_step))

    def _track(self, name: str, parameter: nn.Parameter) -> None:
        if id(parameter) in self.tracked:
            self._by_name[name] = self.tracked[id(parameter)]
            return
        if is_lazy(parameter) or not parameter.numel():
            return
        part = local_part(parameter)
        if not is_measurable(part):
            what = "parameters on the meta device or without floating-point values"
            self._session.notice(f"{what} were not measured ({parameter.dtype})")
            return
        tracked = TrackedParameter(parameter, name, sample_values(part), few_values(parameter))
        if part is parameter:  # of a sharded parameter, the whole is unknown
            tracked.initial = measure_values(parameter)
        self.tracked[id(parameter)] = self._by_name[name] = tracked
        if parameter.requires_grad and parameter.is_leaf and not is_dtensor(parameter):
            self._handles.add(parameter.register_hook(Hook(partial(self._take_gradient, tracked))))

    def _track_lazy(self, name: str, module: nn.Module, *_: Any) -> None:
        """Track the parameters of a lazy module after its first call."""
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in self.tracked:
                self._session.guarded("a lazy parameter", self._track, join_names(name, own), parameter)

    def _begin_pass(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._reduced.begin_pass(synced=self._wrapper.begin_pass())

    def _take_wholes(self, prefix: str, module: nn.Module, *_: Any) -> None:
        """Measure the parameters that FSDP2 has gathered for this module, and watch their gradients."""
        if not self._session.is_paused:
            for own, parameter in module.named_parameters():
                tracked = self._shard_of(join_names(prefix, own))
                if tracked is not None and is_measurable(parameter):
                    self._session.guarded(f"the parameter `{tracked.name}`", self._take_whole, tracked, parameter)

    def _take_whole(self, tracked: TrackedParameter, whole: nn.Parameter) -> None:
        tracked.whole = measure_values(whole)
        if tracked.whole_id != id(whole) and whole.requires_grad and whole.is_leaf:
            tracked.whole_id = id(whole)
            self._handles.add(whole.register_hook(Hook(partial(self._take_gradient, tracked))))

    def stop(self) -> None:
        self._handles.remove()
        self._flush_gradients()
        # An optimizer that is not from torch may have stepped; of several steps, only the sum is known.
        if not self.steps and not self.foreign_optimizer_steps and self.backward_passes <= 1:
            for tracked in self.tracked.values():
                self._session.guarded("an optimizer step", tracked.add_update, True)

    def _take_gradient(self, tracked: TrackedParameter, gradient: Tensor) -> None:
        """Add the gradient of one backward pass, without what was accumulated before."""
        if self._session.is_active and (gradient.is_sparse or self._session.is_loss_gradient(gradient)):
            tracked.gradients += 1
            self._session.guarded(f"the gradient of `{tracked.name}`", self._add_gradient, tracked, gradient)

    def _add_gradient(self, tracked: TrackedParameter, gradient: Tensor) -> None:
        is_shard = is_dtensor(tracked.parameter)
        if is_shard or self._wrapper.reduces(tracked.parameter):
            self._reduced.expect(tracked.parameter)
        measured = self._is_measured(tracked)
        if is_shard and measured:
            tracked.add_gradient(gradient)
        elif not is_shard and not self._wrapper.reduces(tracked.parameter):
            if measured:
                tracked.add_gradient(gradient)
            self.zero_grad.add(tracked.parameter, gradient)

    def _take_reduced(self, parameter: Tensor, gradient: Tensor) -> None:
        """Take a gradient after the reduction over the ranks; of a sharded parameter, this rank's part of it."""
        self.zero_grad.add(parameter, gradient)
        tracked = self.tracked.get(id(parameter))
        if tracked is not None and not is_dtensor(parameter) and self._is_measured(tracked):
            tracked.add_gradient(gradient)

    def _is_measured(self, tracked: TrackedParameter) -> bool:
        """Whether a gradient is measured: in sampled steps, and the first one."""
        return self._session.sampling.is_measuring or tracked.gradient is None

    def _flush_gradients(self) -> None:
        if self._session.guarded("the gradients", self._reduced.flush):
            self._session.notice("some gradients of parameters were not reduced: they are those of this rank")

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._flush_gradients()
        for parameter in parameters_of(optimizer):
            tracked = self.tracked.get(id(parameter))
            if tracked is not None:
                tracked.in_optimizer = True
                if self._session.sampling.is_measuring:
                    self._session.guarded("an optimizer step", tracked.begin_update)
        self._session.guarded("an optimizer step", self.zero_grad.take_step, parameters_of(optimizer))
        for call in self.before_step:
            self._session.guarded("an optimizer step", call, optimizer)
        self._session.in_step = len(args) < 2 and not kwargs  # a closure runs the model

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._session.in_step = False
        where = f"a step of {type(optimizer).__name__}"
        self._session.guarded(where, self._take_step, optimizer)
        for call in self.after_any_step:
            self._session.guarded(where, call, optimizer)
        self._session.sampling.end_step(id(optimizer))

    def _take_step(self, optimizer: Optimizer) -> None:
        parameters = parameters_of(optimizer)
        self._unregistered.take_step(parameters)
        tracked = [p for p in parameters if id(p) in self.tracked]
        if not tracked:
            trained = [w.parameter for w in self.tracked.values() if w.parameter.requires_grad]
            self.foreign_optimizer_steps += bool(trained) and _shapes(parameters) == _shapes(trained)
            return
        is_search = isinstance(optimizer, torch.optim.LBFGS)
        if self._session.sampling.is_measuring and not is_search:  # one step of it is a line search of many
            for parameter in tracked:
                self.tracked[id(parameter)].add_update()
        for call in self.after_step:
            call(optimizer)
        if len(self.steps) >= _MAX_STEPS:
            self._session.notice(f"learning rates were recorded for the first {_MAX_STEPS - 1:,} steps and the last")
            self.steps.pop()
        groups = optimizer.param_groups
        lr = max((float(group.get("lr", 0.0)) for group in groups), default=0.0)
        peak_lr = max((float(group["initial_lr"]) for group in groups if "initial_lr" in group), default=None)
        self.steps.append(record.StepRecord(type(optimizer).__name__, lr, step_number(optimizer), peak_lr))

    def of(self, module: nn.Module, prefix: str) -> tuple[record.ParameterRecord, ...]:
        """Return the records of a module's own parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = join_names(prefix, name)
            tracked = self.tracked.get(id(parameter)) or self._shard_of(full)
            if tracked is not None and is_measurable(local_part(parameter)):
                where = f"the parameter `{full}`"
                found.append(self._session.guarded(where, self._finish, module, name, full, tracked))
        return tuple(parameter for parameter in found if parameter is not None)

    def _shard_of(self, name: str) -> TrackedParameter | None:
        """The sharded parameter of this name, whose whole is in its place between two passes."""
        tracked = self._by_name.get(name)
        return tracked if tracked is not None and is_dtensor(tracked.parameter) else None

    def _finish(self, module: nn.Module, name: str, full: str, tracked: TrackedParameter) -> record.ParameterRecord:
        parameter = tracked.parameter
        if tracked.whole is None and is_dtensor(parameter):
            self._session.notice("parameters that no pass used were measured in the part that this rank has")
        values = tracked.whole or measure_values(local_part(parameter))
        return record.ParameterRecord(
            name=name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            values=tensor_stats(values.moments),
            gradient=None if tracked.gradient is None else tensor_stats(tracked.gradient),
            update_ratio=tracked.update_ratios / tracked.steps if tracked.steps else None,
            in_optimizer=tracked.in_optimizer if self.steps else None,
            alias_of=None if full == tracked.name else tracked.name,
            content_hash=values.content_hash,
            identical_rows=values.identical_rows,
            predicted_gain=predicted_gain(module, parameter, values.moments) if name == "weight" else None,
            update_rms=tracked.update_rms / tracked.steps if tracked.steps else None,
            initial=None if tracked.initial is None else tensor_stats(tracked.initial.moments),
            initial_hash=None if tracked.initial is None else tracked.initial.content_hash,
            initial_identical_rows=tracked.initial is not None and tracked.initial.identical_rows,
            has_changed=tracked.has_changed,
        )


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def step_number(optimizer: Optimizer) -> int | None:
    """Return how many steps an optimizer has made; None if it does not count."""
    states = optimizer.state.values()
    number = max((float(s["step"]) for s in states if isinstance(s, dict) and "step" in s), default=None)
    return None if number is None else int(number)


def _shapes(parameters: list[Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(parameter.shape) for parameter in parameters)
