"""What is called inside of modules: activations, additions to the stream, attention, losses, products."""

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normscope.diagnostics.collect.accumulators import ModuleAccumulator, UnitsBySource, is_saturated
from normscope.diagnostics.collect.attention import AttentionAccumulator, add_queries, add_softmax
from normscope.diagnostics.collect.flops import flops_of
from normscope.diagnostics.collect.kinds import (
    ACTIVATIONS,
    ADDITIONS,
    BOUNDED_ACTIVATIONS,
    OPENED,
    VIEWS,
    activation_of,
    function_name,
    heads_of,
    is_attention,
)
from normscope.diagnostics.collect.losses import PASS_THROUGH, PROBABILITY_FUNCTIONS, record_loss
from normscope.diagnostics.collect.session import CallFrame, XraySession
from normscope.diagnostics.collect.tensor_registry import JoinLocation, TensorEntry, in_backward
from normscope.diagnostics.collect.tensors import is_measurable, shape_of
from normscope.diagnostics.collect.unregistered_parameters import UnregisteredParameters
from normscope.ops.activations import activate
from normscope.ops.attention import attend

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_DROPS = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", *(f"dropout{n}d" for n in (1, 2, 3))}
_FACTORS = {"mul", "multiply", "__mul__", "__rmul__", "__imul__", "div", "divide", "true_divide", "__truediv__"}
_CALLS = 64
"""So many calls of one function, and so many additions, in one call of a module have figures of their own."""
_DATA: Any = torch._C.TensorBase.data


class FunctionTracer(TorchFunctionMode):
    """Sees every function of torch that is called on a tensor, and normscope's own kernels."""

    def __init__(self, session: XraySession, unregistered: UnregisteredParameters) -> None:
        super().__init__()
        self._session, self._unregistered = session, unregistered

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        session = self._session
        if session.is_paused or session.is_skipping or in_backward():
            return func(*args, **kwargs)
        if func in OPENED:
            with self:
                return _opened(func)(*args, **kwargs)
        name = function_name(func)
        joins = session.guarded(f"`{name}()`", self._joining, args) if name in ADDITIONS else None
        scales = session.stack and (name in _FACTORS or name in _DROPS)
        scaled_from = session.guarded(f"`{name}()`", self._scaled, name, args) if scales else None
        result = func(*args, **kwargs)
        if session.stack:
            session.guarded(f"`{name}()`", self._look, func, name, args, kwargs, result, joins, scaled_from)
        elif name == "cross_entropy":
            session.guarded("`cross_entropy()`", record_loss, session, func, args, kwargs, result)
        elif name == "_amp_update_scale":
            session.guarded("a GradScaler", self._scaler, args)
        if name in PROBABILITY_FUNCTIONS or (name in PASS_THROUGH and session.probabilities):
            where = session.stack[-1].accumulator.name if session.stack else None
            session.guarded(f"`{name}()`", session.probabilities.follow, name, args, result, where)
        if name in ("__get__", "__set__") and getattr(func, "__self__", None) is _DATA:
            session.guarded("`.data`", self._open_to_change, args)
        return result

    def _look(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        joins: tuple[TensorEntry, TensorEntry] | None,
        scaled_from: TensorEntry | None,
    ) -> None:
        frame = self._session.stack[-1]
        self._count(flops_of(name, args, kwargs, result))
        self._unregistered.check_call(frame.accumulator.name, name, args, kwargs, self._session.registry)
        if name in VIEWS:
            self._same_numbers(args, result)
        elif joins is not None and isinstance(result, Tensor):
            self._join(frame, joins, result)
        elif scaled_from is not None and isinstance(result, Tensor):
            self._pass_on(scaled_from, result)
        elif func is activate:
            self._activation(frame, args[0], args[1:], result)
        elif name in ACTIVATIONS:
            if activation_of(frame.module) is None:
                self._activation(frame, name, (*args, *kwargs.values()), result)
        elif func is attend:
            q, k = args[:2]
            self._attention(frame, q.transpose(1, 2), k.transpose(1, 2), None, kwargs["causal"], kwargs["window"], None)
            self._count(4 * (q.numel() // q.shape[-1]) * k.shape[1] * q.shape[-1])
        elif name == "scaled_dot_product_attention":
            given = dict(zip(_ATTENTION, args, strict=False)) | kwargs
            self._attention(
                frame, given["query"], given["key"], given.get("attn_mask"), bool(given.get("is_causal")), None,
                given.get("scale"),
            )  # fmt: skip
        elif name == "softmax" and isinstance(result, Tensor):
            self._softmax(frame, args, kwargs, result)
        elif name == "cross_entropy":
            record_loss(self._session, func, args, kwargs, result)

    def _count(self, flops: int | None) -> None:
        """Add to all that are running; each once, though it may be running inside of itself."""
        if flops == 0:
            return
        for accumulator in {outer.accumulator.name: outer.accumulator for outer in self._session.stack}.values():
            accumulator.flops += flops or 0
            accumulator.uncounted = accumulator.uncounted or flops is None

    def _scaler(self, args: tuple[Any, ...]) -> None:
        """The third argument says whether it has found what is not finite, and has left the step out for that."""
        self._session.skipped_steps += float(args[2]) > 0

    def _open_to_change(self, args: tuple[Any, ...]) -> None:
        """torch does not count what is changed by way of `.data`."""
        if args and isinstance(args[0], Tensor) and is_measurable(args[0]):
            self._session.registry.of(args[0]).needs_remeasure = True

    def _scaled(self, name: str, args: tuple[Any, ...]) -> TensorEntry | None:
        """What is known of a tensor that is multiplied by a factor, or of which some is dropped; None for others.

        A factor has fewer numbers: one for all, or one for each feature or text. What has as many is a gate.
        """
        tensors = [x for x in args[: 1 if name in _DROPS else 2] if isinstance(x, Tensor)]
        large = max(tensors, key=Tensor.numel, default=None)
        if (
            large is None
            or not is_measurable(large)
            or (len(tensors) == 2 and tensors[0].numel() == tensors[1].numel())
        ):
            return None
        known = self._session.registry.of(large)
        return known if known.producers or known.scaled_from else None

    def _pass_on(self, known: TensorEntry, result: Tensor) -> None:
        """It is where it was in the model, though with other numbers."""
        registry = self._session.registry
        if is_measurable(result) and registry.of(result) is not known:
            producers = known.producers or known.scaled_from
            other = replace(known, moments=None, producers=[], scaled_from=producers, consumers=list(known.consumers))
            registry.share(result, other)

    def _same_numbers(self, args: tuple[Any, ...], result: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(result, Tensor) or given is result:
            return
        if result.numel() == given.numel() and is_measurable(given) and is_measurable(result):
            known = self._session.registry.of(given)
            if known.producers or known.scaled_from or known.join:
                self._session.registry.share(result, known)

    def _joining(self, args: tuple[Any, ...]) -> tuple[TensorEntry, TensorEntry] | None:
        """The stream and the branch of an addition, with their moments; None if it is not that kind of addition.

        The stream is the one that was read by a module before the other was made.
        """
        if self._session.stack and len(args) >= 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
            a, b = args[:2]
            if a.shape == b.shape and a.dim() >= 2 and a is not b and is_measurable(a) and is_measurable(b):
                registry = self._session.registry
                stream, branch = sorted((registry.of(a), registry.of(b)), key=lambda known: known.created_at)
                if (
                    stream.consumers
                    and (branch.producers or branch.scaled_from)
                    and stream.created_at < branch.created_at
                ):
                    with torch._C.DisableTorchFunction():
                        registry.moments(a)
                        registry.moments(b)
                    return stream, branch
        return None

    def _join(self, frame: CallFrame, joins: tuple[TensorEntry, TensorEntry], result: Tensor) -> None:
        session = self._session
        stream, branch = joins
        index = min(frame.joins, _CALLS - 1)
        frame.joins += 1
        join = frame.accumulator.join(index)
        known = session.registry.renew(result)
        with torch._C.DisableTorchFunction():
            total = session.registry.moments(result)
        assert stream.moments is not None
        assert branch.moments is not None
        join.stream = join.stream.merge(stream.moments)
        join.branch = join.branch.merge(branch.moments)
        join.total = join.total.merge(total)
        join.from_stream = join.from_stream or next(iter(stream.producers or stream.scaled_from), None)
        join.from_branch = join.from_branch or next(iter(branch.producers or branch.scaled_from), None)
        known.join, known.channels = JoinLocation(frame.accumulator.name, index), stream.channels
        if stream.normalized_join is not None:
            place, norm = stream.normalized_join
            session.accumulators[place.module].join(place.index).normalized = norm

    def _function(self, frame: CallFrame, name: str) -> ModuleAccumulator:
        """The tally of a function's call: the second call of the same name in a module has a name of its own."""
        session = self._session
        frame.functions[name] = number = min(frame.functions.get(name, 0) + 1, _CALLS + 1)
        if number > _CALLS:
            where = f"`{frame.accumulator.name}`" if frame.accumulator.name else "the model"
            session.notice(
                f"`{name}()` was called more than {_CALLS} times in {where}: the rest counts as one with the last"
            )
            number = _CALLS
        own = f"{name}()" if number == 1 else f"{name}()#{number}"
        full = f"{frame.accumulator.name}.{own}" if frame.accumulator.name else own
        if full not in session.accumulators:
            session.accumulators[full] = ModuleAccumulator(full, name, is_function=True, order=session.next_order())
            session.functions.setdefault(frame.accumulator.name, []).append(full)
        return session.accumulators[full]

    def _activation(self, frame: CallFrame, name: str, args: tuple[Any, ...], result: Any) -> None:
        if not isinstance(result, Tensor) or not is_measurable(result) or result.dim() == 0:
            return
        session = self._session
        accumulator = self._function(frame, name)
        given = next((x for x in args if isinstance(x, Tensor)), result)
        with torch._C.DisableTorchFunction():
            before = session.registry.of(given)
            if given is not result:
                accumulator.add_entering(session.moments(given))
            axis = before.channels if given.dim() == result.dim() else -1
            known = session.registry.renew(result)
            known.producers, known.channels = [accumulator.name], axis
            measure_activation(accumulator, name, result, session.moments(result), axis, before.place)
            accumulator.training = frame.module.training
            accumulator.fed_by.update(dict.fromkeys(before.producers[:1]))
            session.watch_gradient(result, accumulator)
        accumulator.calls += 1
        if not accumulator.outputs:
            accumulator.inputs = tuple(shape_of(x) for x in args if isinstance(x, Tensor))
            accumulator.outputs, accumulator.dtype = (tuple(result.shape),), str(result.dtype).removeprefix("torch.")
        accumulator.bytes += result.nbytes

    def _attention(
        self,
        frame: CallFrame,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        window: int | None,
        scale: float | None,
    ) -> None:
        if not is_measurable(q) or not is_measurable(k):
            return
        accumulator = frame.accumulator
        accumulator.attention = AttentionAccumulator() if accumulator.attention is None else accumulator.attention
        with torch._C.DisableTorchFunction(), torch.no_grad():
            add_queries(accumulator.attention, q, k, mask=mask, causal=causal, window=window, scale=scale)

    def _softmax(self, frame: CallFrame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else kwargs.get("input")
        along = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(scores, Tensor) or along not in (-1, result.dim() - 1) or not is_measurable(result):
            return
        module = self._session.stack[-1].module
        if result.dim() == 4 or (result.dim() == 3 and is_attention(module)):
            accumulator = frame.accumulator
            accumulator.attention = AttentionAccumulator() if accumulator.attention is None else accumulator.attention
            with torch._C.DisableTorchFunction(), torch.no_grad():
                add_softmax(accumulator.attention, scores, heads_of(module))


def measure_activation(
    accumulator: ModuleAccumulator, name: str, result: Tensor, moments: Any, axis: int, after: str
) -> None:
    """The figures of an activation's output: of all of it, and of each unit."""
    bounds = BOUNDED_ACTIVATIONS.get(name)
    accumulator.add_output(moments, result)
    accumulator.units = UnitsBySource() if accumulator.units is None else accumulator.units
    accumulator.units.add(result, axis, bounds, after)
    if bounds is not None:
        accumulator.saturated = (accumulator.saturated or 0) + int(is_saturated(result.detach(), bounds).sum())


def _opened(function: Any) -> Callable[..., Any]:
    """The same function, which takes no notice of being watched: so that what it calls can be seen."""
    blind = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, blind, function.__name__, function.__defaults__, function.__closure__)
