"""Record the inputs and outputs of every module."""

import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.accumulators import ModuleAccumulator, add_units
from normscope.diagnostics.collect.functions import FunctionObserver, measure_activation
from normscope.diagnostics.collect.norms import add_norm
from normscope.diagnostics.collect.products import UnregisteredParameters
from normscope.diagnostics.collect.session import CallFrame, XraySession
from normscope.diagnostics.collect.tensors import in_backward, is_measurable, is_only_masked, is_readable, shape_of
from normscope.diagnostics.module_names import is_inside
from normscope.tracing.function_kinds import Role
from normscope.tracing.module_kinds import activation_name, describe_class, has_channels_first, is_linear, is_norm
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.sharded import local_part, original_class

COMPILED = "compiled code ran in eager mode during the x-ray"


class XrayObserver(FunctionObserver):
    """Collect statistics of the inputs and outputs of every module, and of functions."""

    def __init__(self, model: nn.Module, session: XraySession, unregistered: UnregisteredParameters) -> None:
        super().__init__(session, unregistered)
        self._model = model
        names: dict[nn.Module, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            first = names.setdefault(module, name)
            alias_of = None if first == name else first
            session.accumulators[name] = ModuleAccumulator(name, describe_class(module), alias_of=alias_of)
        self._finite_weights: dict[nn.Module, bool] = {}
        self._outermost_calls: dict[str, int] = {}

    @property
    def batches(self) -> int:
        """The number of forward passes. If the model itself is never called, the fewest calls of any of its parts."""
        return self._session.batches or min(self._outermost_calls.values(), default=0)

    def enter_module(
        self, module: nn.Module, name: str | None, args: Any, kwargs: Any, frames: Sequence[CallFrame]
    ) -> CallFrame | None:
        session = self._session
        if session.is_paused:
            return None
        if name is None:
            session.notice("calls of a copied module, which kept its hooks, were not recorded")
            return None
        frame = CallFrame(module, session.accumulators[name], skipped=in_backward())
        if not frame.skipped:
            kind = original_class(module).__name__
            session.guarded(f"the call of {kind}", self._count, frame, frames)
            frame.measured = session.sampling.is_measuring or frame.accumulator.calls == 1
            session.guarded(f"the inputs of {kind}", self._take_inputs, frame, args, kwargs, not frames)
            if self.watchers is not None:
                self.watchers.enter_module(frame, args, kwargs, frames)
        return frame

    def _count(self, frame: CallFrame, frames: Sequence[CallFrame]) -> None:
        session, accumulator, module = self._session, frame.accumulator, frame.module
        session.in_step = session.in_step and bool(frames)  # a step that ended with an error
        if not frames:
            session.sampling.begin_pass()
        if module is self._model and not any(outer.module is module for outer in frames):
            session.batches += 1
        elif not frames:
            self._outermost_calls[accumulator.name] = self._outermost_calls.get(accumulator.name, 0) + 1
        if accumulator.order is None:
            accumulator.order, accumulator.training = session.next_order(), module.training
            accumulator.kind = describe_class(module)  # a lazy module changes its class on the first call
            self._add_notices(module)
        accumulator.calls += 1

    def _add_notices(self, module: nn.Module) -> None:
        """Add notices about what cannot be recorded, or differs from a run without the x-ray."""
        if threading.get_ident() != self._session.thread:
            self._session.notice("the model was called in another thread, where functions cannot be recorded")
        if _in_compiled_code():
            self._session.notice(COMPILED)
        has_fast_path = isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer) and not module.training
        if has_fast_path and not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())):
            slow = f"{type(module).__name__} ran without torch's inference fast path, which hides its submodules"
            self._session.notice(f"{slow}; outputs at padded positions may differ from a run without the x-ray")

    @torch.no_grad()
    def _take_inputs(self, frame: CallFrame, args: Any, kwargs: Any, is_outermost: bool) -> None:
        session, accumulator = self._session, frame.accumulator
        tensors = list(tensors_in((args, kwargs)))
        measurable = [tensor for tensor in tensors if is_measurable(tensor)]
        if not accumulator.input_shapes:
            accumulator.input_shapes = tuple(shape_of(tensor) for tensor in tensors)
        if is_outermost and tensors and is_readable(tensors[0]):  # an input of the model
            accumulator.input_fingerprint.add(tensors[0])
        if is_outermost and session.batch_checksums is not None:
            session.batch_checksums.take_inputs(tensors)
        moments = []
        for tensor in measurable:
            entry = session.registry.of(tensor)
            entry.consumers.append(accumulator.name)
            accumulator.fed_by.update(dict.fromkeys(entry.producers[:1]))
            if not frame.measured:
                continue
            moments.append(session.registry.moments(tensor))
            if moments[-1].non_finite:
                is_mask = is_only_masked(tensor)
                frame.masked_inputs = frame.masked_inputs or is_mask
                frame.finite_inputs = frame.finite_inputs and is_mask and tensor is not measurable[0]
                accumulator.received_non_finite = accumulator.received_non_finite or not is_mask
        if measurable:
            self._take_main_input(frame, measurable[0])
        if moments:
            accumulator.add_input(moments[0])

    def _take_main_input(self, frame: CallFrame, x: Tensor) -> None:
        session, accumulator, module = self._session, frame.accumulator, frame.module
        entry = session.registry.of(x)
        frame.channels, frame.input_origin = entry.channels, entry.origin
        frame.input_lineage = session.lineage.id_of(x)
        axis = _channels_axis(module, x)
        if not frame.measured:
            return
        if is_norm(module, accumulator.name):
            frame.after_join = None if entry.join is None else (entry.join, accumulator.name)
            if x.numel():
                accumulator.norm = add_norm(accumulator.norm, module, x, entry.channels if axis is None else axis)
        elif is_linear(module) and x.dim() >= 2:
            accumulator.features = add_units(accumulator.features, x, -1 if axis is None else axis, None)

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        session = self._session
        if session.is_paused:
            return
        where = f"the outputs of {original_class(frame.module).__name__}"
        if not frame.skipped:
            session.guarded(where, self._take_outputs, frame, output)
            if self.watchers is not None:
                self.watchers.exit_module(frame, output)
        elif frame.accumulator.without_grad:
            session.guarded(where, self._watch_recomputed, frame.accumulator, output)

    def _watch_recomputed(self, accumulator: ModuleAccumulator, output: Any) -> None:
        """A reentrant checkpoint computes the output first without gradients, then again with gradients."""
        self._session.notice("in reentrant checkpoints gradients are recorded for modules, but not for functions")
        main = _main_tensor([tensor for tensor in tensors_in(output) if is_measurable(tensor)])
        if main is not None:
            self._session.watch_gradient(main, accumulator)

    def _take_outputs(self, frame: CallFrame, output: Any) -> None:
        session, accumulator, module = self._session, frame.accumulator, frame.module
        tensors = list(tensors_in(output))
        measurable = [tensor for tensor in tensors if is_measurable(tensor)]
        if not accumulator.output_shapes:
            accumulator.output_shapes = tuple(shape_of(tensor) for tensor in tensors)
            accumulator.dtype = str(measurable[0].dtype).removeprefix("torch.") if measurable else None
        main = _main_tensor(measurable)
        non_finite = []
        for tensor in measurable:
            self._record_output_lineage(frame, tensor)
            entry = session.registry.of(tensor)
            if not entry.producers:  # otherwise the module passes on the output of a submodule
                axis = _channels_axis(module, tensor)
                entry.channels = frame.channels if axis is None else axis
            if accumulator.name not in entry.producers:
                entry.producers.append(accumulator.name)
            if frame.after_join is not None:  # if this is the stream of the next addition, the norm is a post-norm
                entry.normalized_join = frame.after_join
            accumulator.output_bytes += tensor.nbytes
            if not frame.measured:
                continue
            moments = session.registry.moments(tensor)
            non_finite += [tensor] if moments.non_finite else []
            if tensor is main:
                activation = activation_name(module)
                if activation is not None and tensor.dim():
                    measure_activation(accumulator, activation, tensor, moments, entry.channels, frame.input_origin)
                else:
                    accumulator.add_output(moments, tensor)
                accumulator.without_grad = not tensor.requires_grad
                session.watch_gradient(tensor, accumulator)
        if non_finite:
            self._take_non_finite(frame, non_finite)

    def _record_output_lineage(self, frame: CallFrame, tensor: Tensor) -> None:
        """Record the origin of a tensor that no torch function made: the output of a fused kernel."""
        lineage = self._session.lineage
        if frame.input_lineage is not None and not lineage.is_known(tensor):
            role: Role = "pass" if is_norm(frame.module) else "linear" if is_linear(frame.module) else "nonlinear"
            lineage.record([frame.input_lineage], [tensor], role)

    def _take_non_finite(self, frame: CallFrame, outputs: list[Tensor]) -> None:
        """Find out whether a module produced non-finite outputs itself. Passing on a mask of -inf does not count."""
        accumulator, is_mask = frame.accumulator, all(is_only_masked(tensor) for tensor in outputs)
        was_mask = accumulator.only_negative_infinity or not accumulator.has_non_finite
        accumulator.only_negative_infinity, accumulator.has_non_finite = is_mask and was_mask, True
        if not frame.finite_inputs or (is_mask and frame.masked_inputs):
            return
        if not self._is_from_submodule(accumulator) and self._has_finite_weights(frame.module):
            accumulator.produced_non_finite = True

    def _is_from_submodule(self, accumulator: ModuleAccumulator) -> bool:
        """Whether a submodule or function inside produced the non-finite values: only the innermost is reported."""
        producers = (other for other in self._session.accumulators.values() if other.produced_non_finite)
        return any(other is not accumulator and is_inside(other.name, accumulator.name) for other in producers)

    def _has_finite_weights(self, module: nn.Module) -> bool:
        if module not in self._finite_weights:
            parameters = [p for p in map(local_part, module.parameters()) if is_measurable(p)]
            self._finite_weights[module] = all(self._session.registry.moments(p).non_finite == 0 for p in parameters)
        return self._finite_weights[module]


def _in_compiled_code() -> bool:
    """Whether a function compiled by torch is on the call stack, and runs in eager mode."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    frame: Any = sys._getframe() if compiler is not None else None
    while frame is not None:
        if frame.f_code.co_filename == getattr(compiler, "__file__", None):
            return True
        frame = frame.f_back
    return False


def _main_tensor(tensors: list[Tensor]) -> Tensor | None:
    """Return the first tensor that is not a scalar: a model may return its loss before the logits."""
    return next((tensor for tensor in tensors if tensor.dim()), tensors[0] if tensors else None)


def _channels_axis(module: nn.Module, tensor: Tensor) -> int | None:
    """Return the axis of the channels of a module's input and output; None if its class does not tell."""
    channels_first = has_channels_first(module)
    if channels_first is None:
        return None
    if not channels_first:
        return -1
    if isinstance(module, nn.modules.conv._ConvNd):
        return 1 if tensor.dim() == len(module.kernel_size) + 2 else 0  # an unbatched image
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return 1 if tensor.dim() != module._get_no_batch_dim() else 0
    return 1 if tensor.dim() > 1 else 0
