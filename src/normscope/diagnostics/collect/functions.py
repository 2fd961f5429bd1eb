"""Record the torch functions that modules call: activations, residual additions, attention, losses, products."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from normscope.diagnostics.collect.accumulators import ModuleAccumulator, UnitsBySource, is_saturated
from normscope.diagnostics.collect.products import UnregisteredParameters, flops_of
from normscope.diagnostics.collect.session import CallFrame, XraySession
from normscope.diagnostics.collect.tensors import JoinLocation, TrackedTensor, in_backward, is_measurable, shape_of
from normscope.diagnostics.module_names import join_names, module_ref
from normscope.ops.activations import activate
from normscope.ops.attention import attend
from normscope.tracing.function_kinds import ACTIVATIONS, BOUNDED_ACTIVATIONS, DROPOUTS, SAME_VALUES, role_of
from normscope.tracing.module_kinds import activation_name, head_count, is_attention
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.projection_shortcuts import find_projection_shortcut
from normscope.tracing.tracer import FunctionCall, TraceObserver

_SDPA_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_SCALINGS = {"mul", "div"}
_MAX_CALLS = 64
"""In one call of a module, this many calls of one function, and this many additions, get statistics of their own."""
_MAX_ARG_DEPTH = 2
_DATA: Any = torch._C.TensorBase.data

_Sides = tuple[TrackedTensor, TrackedTensor]


class CallWatchers(Protocol):
    """What else gets the calls that are recorded: `watchers.watchers.Watchers`."""

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None: ...

    def exit_module(self, frame: CallFrame, output: Any) -> None: ...

    def call_function(self, call: FunctionCall, result: Any) -> None: ...

    def fail_function(self, call: FunctionCall) -> None: ...


class FunctionObserver(TraceObserver):
    """Collect statistics of the torch functions called on tensors, and of normscope's own kernels."""

    def __init__(self, session: XraySession, unregistered: UnregisteredParameters) -> None:
        self._session, self._unregistered = session, unregistered
        self.watchers: CallWatchers | None = None
        """What else gets the calls of functions and modules."""

    def is_recording(self, frames: Sequence[CallFrame]) -> bool:
        is_recomputing = bool(frames) and frames[-1].skipped
        return not (self._session.in_step or self._session.is_paused or is_recomputing or in_backward())

    def call_function(self, call: FunctionCall) -> Any:
        session, name, frames = self._session, call.name, call.frames
        where = f"`{name}()`"
        inputs = session.guarded(where, self._lineage_inputs, call) if frames else None
        is_addition = frames and name == "add" and frames[-1].measured
        join = session.guarded(where, self._find_join, call.args) if is_addition else None
        is_scaling = frames and (name in _SCALINGS or name in DROPOUTS)
        scaled_from = session.guarded(where, self._find_scaled, call) if is_scaling else None
        try:
            result = call.run()
        except Exception:
            if self.watchers is not None:
                self.watchers.fail_function(call)
            raise
        if frames:
            session.guarded(where, self._observe, call, result, join, scaled_from)
            session.guarded(where, self._record_lineage, name, inputs or [], result)
        elif name == "cross_entropy":
            session.guarded(where, self._take_targets, call)
        elif name == "amp_update_scale":
            session.guarded("a GradScaler", self._count_skipped_steps, call.args)
        if getattr(call.function, "__self__", None) is _DATA:
            session.guarded("`.data`", self._mark_for_remeasuring, call.args)
        if self.watchers is not None:
            self.watchers.call_function(call, result)
        return result

    def _observe(self, call: FunctionCall, result: Any, join: _Sides | None, scaled_from: TrackedTensor | None) -> None:
        frame, name, args, kwargs = call.frames[-1], call.name, call.args, call.kwargs
        self._count_flops(call.frames, flops_of(name, args, kwargs, result))
        self._unregistered.check_call(frame.accumulator.name, call, self._session.registry)
        if name in SAME_VALUES:
            self._share_entry(args, result)
        elif join is not None and isinstance(result, Tensor):
            self._record_join(frame, join, result)
        elif scaled_from is not None and isinstance(result, Tensor):
            self._pass_on(scaled_from, result)
        elif call.function is activate:
            self._record_activation(frame, args[0], args[1:], result)
        elif name in ACTIVATIONS:
            if activation_name(frame.module) is None:
                self._record_activation(frame, name, (*args, *kwargs.values()), result)
        elif call.function is attend:
            q, k = args[:2]
            masks = {"causal": kwargs["causal"], "window": kwargs["window"]}
            self._record_attention(frame, q.transpose(1, 2), k.transpose(1, 2), **masks)
            self._count_flops(call.frames, 4 * (q.numel() // q.shape[-1]) * k.shape[1] * q.shape[-1])
        elif name == "scaled_dot_product_attention":
            named = dict(zip(_SDPA_ARGS, args, strict=False)) | kwargs
            masks = {"mask": named.get("attn_mask"), "causal": bool(named.get("is_causal"))}
            self._record_attention(frame, named["query"], named["key"], **masks, scale=named.get("scale"))
        elif name == "softmax" and isinstance(result, Tensor):
            self._record_softmax(frame, args, kwargs, result)
        elif name == "cross_entropy":
            self._take_targets(call)

    def _take_targets(self, call: FunctionCall) -> None:
        if self._session.batch_checksums is not None:
            self._session.batch_checksums.take_targets(
                call.args[1] if len(call.args) > 1 else call.kwargs.get("target")
            )

    def _count_flops(self, frames: Sequence[CallFrame], flops: int | None) -> None:
        """Add to all running modules, each once even if it runs inside itself."""
        if flops == 0:
            return
        for accumulator in {outer.accumulator.name: outer.accumulator for outer in frames}.values():
            accumulator.flops = None if flops is None or accumulator.flops is None else accumulator.flops + flops

    def _count_skipped_steps(self, args: tuple[Any, ...]) -> None:
        """The third argument is the scaler's found_inf: if it is set, the scaler skipped the step."""
        self._session.skipped_steps += float(args[2]) > 0

    def _mark_for_remeasuring(self, args: tuple[Any, ...]) -> None:
        """A change through `.data` does not raise the version of a tensor."""
        if args and is_measurable(args[0]):
            self._session.registry.of(args[0]).needs_remeasure = True

    def _lineage_inputs(self, call: FunctionCall) -> list[int]:
        """Return the lineage ids of a function's inputs. The function may change them in place, so call it before."""
        tensors = tensors_in((call.args, tuple(call.kwargs.values())), _MAX_ARG_DEPTH)
        return [self._session.lineage.id_of(tensor) for tensor in tensors if is_measurable(tensor)]

    def _record_lineage(self, name: str, inputs: list[int], result: Any) -> None:
        lineage, role = self._session.lineage, role_of([name])
        outputs = [tensor for tensor in tensors_in(result, _MAX_ARG_DEPTH) if is_measurable(tensor)]
        if name in SAME_VALUES and inputs:
            for tensor in outputs:
                lineage.alias(tensor, inputs[0])
        elif role in ("linear", "pass"):  # the rest are weights
            first = 1 if name == "addmm" else 0
            lineage.record(inputs[first : first + 1], outputs, role)
        else:
            lineage.record(inputs, outputs, role)

    def _find_scaled(self, call: FunctionCall) -> TrackedTensor | None:
        """Return the entry of a tensor that is multiplied by a factor, or of which some values are dropped.

        A factor has fewer elements than the tensor: one for all, or one for each feature or sequence. A tensor with as
        many elements is a gate.
        """
        tensors = [x for x in call.args[: 1 if call.name in DROPOUTS else 2] if isinstance(x, Tensor)]
        large = max(tensors, key=Tensor.numel, default=None)
        if not is_measurable(large) or (len(tensors) == 2 and tensors[0].numel() == tensors[1].numel()):
            return None
        known = self._session.registry.of(large)
        return known if known.producers or known.scaled_from else None

    def _pass_on(self, known: TrackedTensor, result: Tensor) -> None:
        """Keep the origin of a scaled tensor, but not its statistics."""
        registry = self._session.registry
        if is_measurable(result) and registry.of(result) is not known:
            origin = known.producers or known.scaled_from
            other = replace(known, moments=None, producers=[], scaled_from=origin, consumers=list(known.consumers))
            registry.share(result, other)

    def _share_entry(self, args: tuple[Any, ...], result: Any) -> None:
        given = args[0] if args else None
        if given is result or not is_measurable(given) or not is_measurable(result):
            return
        if result.numel() == given.numel():
            known = self._session.registry.of(given)
            if known.producers or known.scaled_from or known.join:
                self._session.registry.share(result, known)

    def _find_join(self, args: tuple[Any, ...]) -> _Sides | None:
        """Return the residual stream and the branch of an addition, measured; None if it is no residual addition.

        The stream is the side that a module read before the other side was made, or a projection shortcut.
        """
        a, b = (*args, None, None)[:2]
        if not is_measurable(a) or not is_measurable(b) or a is b or a.shape != b.shape or a.dim() < 2:
            return None
        registry, lineage = self._session.registry, self._session.lineage
        stream, branch = sorted((registry.of(a), registry.of(b)), key=lambda known: known.created_at)
        is_branch_after_stream = stream.created_at < branch.created_at and (branch.producers or branch.scaled_from)
        if not (stream.consumers and is_branch_after_stream):
            shortcut = find_projection_shortcut(lineage, lineage.id_of(a), lineage.id_of(b))
            if shortcut is None:
                return None
            sides = (a, b) if shortcut.shortcut == lineage.id_of(a) else (b, a)
            stream, branch = (registry.of(side) for side in sides)
        registry.moments(a)
        registry.moments(b)
        return stream, branch

    def _record_join(self, frame: CallFrame, sides: _Sides, result: Tensor) -> None:
        session = self._session
        stream, branch = sides
        index = min(frame.joins, _MAX_CALLS - 1)
        frame.joins += 1
        join = frame.accumulator.join(index)
        known = session.registry.renew(result)
        total = session.registry.moments(result)
        assert stream.moments is not None
        assert branch.moments is not None
        join.stream, join.branch = join.stream.merge(stream.moments), join.branch.merge(branch.moments)
        join.total = join.total.merge(total)
        join.from_stream = join.from_stream or next(iter(stream.producers or stream.scaled_from), None)
        join.from_branch = join.from_branch or next(iter(branch.producers or branch.scaled_from), None)
        known.join, known.channels = JoinLocation(frame.accumulator.name, index), stream.channels
        if stream.normalized_join is not None:
            location, norm = stream.normalized_join
            session.accumulators[location.module].join(location.index).normalized = norm

    def _accumulator_of(self, frame: CallFrame, name: str) -> ModuleAccumulator:
        """Return the accumulator of a function call. The second call of a function in a module has its own."""
        session = self._session
        frame.functions[name] = number = min(frame.functions.get(name, 0) + 1, _MAX_CALLS + 1)
        if number > _MAX_CALLS:
            where, rest = module_ref(frame.accumulator.name), "further calls are merged into the last one"
            session.notice(f"`{name}()` was called more than {_MAX_CALLS} times in {where}: {rest}")
            number = _MAX_CALLS
        full = join_names(frame.accumulator.name, f"{name}()" if number == 1 else f"{name}()#{number}")
        if full not in session.accumulators:
            session.accumulators[full] = ModuleAccumulator(full, name, is_function=True, order=session.next_order())
            session.functions.setdefault(frame.accumulator.name, []).append(full)
        return session.accumulators[full]

    def _record_activation(self, frame: CallFrame, name: str, args: tuple[Any, ...], result: Any) -> None:
        if not is_measurable(result) or result.dim() == 0:
            return
        session = self._session
        accumulator = self._accumulator_of(frame, name)
        given = next((x for x in args if isinstance(x, Tensor)), result)
        before = session.registry.of(given)
        if frame.measured and given is not result:
            accumulator.add_input(session.registry.moments(given))
        axis = before.channels if given.dim() == result.dim() else -1
        known = session.registry.renew(result)
        known.producers, known.channels = [accumulator.name], axis
        if frame.measured:
            measure_activation(accumulator, name, result, session.registry.moments(result), axis, before.origin)
            session.watch_gradient(result, accumulator)
        accumulator.training = frame.module.training
        accumulator.fed_by.update(dict.fromkeys(before.producers[:1]))
        accumulator.calls += 1
        if not accumulator.output_shapes:
            accumulator.input_shapes = tuple(shape_of(x) for x in args if isinstance(x, Tensor))
            accumulator.output_shapes = (tuple(result.shape),)
            accumulator.dtype = str(result.dtype).removeprefix("torch.")
        accumulator.output_bytes += result.nbytes

    def _record_attention(self, frame: CallFrame, q: Tensor, k: Tensor, **masks: Any) -> None:
        if frame.measured and is_measurable(q) and is_measurable(k):
            frame.accumulator.attention.add_queries(q, k, **masks)

    def _record_softmax(self, frame: CallFrame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else kwargs.get("input")
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if (
            not frame.measured
            or not isinstance(scores, Tensor)
            or dim not in (-1, result.dim() - 1)
            or not is_measurable(result)
        ):
            return
        if result.dim() == 4 or (result.dim() == 3 and is_attention(frame.module)):
            frame.accumulator.attention.add_softmax(scores, head_count(frame.module) or 1)


def measure_activation(
    accumulator: ModuleAccumulator, name: str, result: Tensor, moments: Any, axis: int, origin: str
) -> None:
    """Add the statistics of an activation's output: of the whole tensor, and of each unit."""
    bounds = BOUNDED_ACTIVATIONS.get(name)
    accumulator.add_output(moments, result)
    accumulator.units = accumulator.units or UnitsBySource()
    accumulator.units.add(result, axis, bounds, origin)
    if bounds is not None:
        accumulator.saturated = (accumulator.saturated or 0) + int(is_saturated(result.detach(), bounds).sum())
