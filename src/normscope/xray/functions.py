"""What is called inside of modules: activations, additions to the stream, attention, losses, products."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normscope.kernels.activations import activate
from normscope.kernels.attention import attend
from normscope.kernels.cross_entropy import cross_entropy
from normscope.xray import record
from normscope.xray.attention import Looks, add_queries, add_softmax
from normscope.xray.flops import flops_of
from normscope.xray.kinds import (
    ACTIVATIONS,
    ADDITIONS,
    BOUNDS,
    OPENED,
    VIEWS,
    activation_of,
    function_name,
    is_attention,
)
from normscope.xray.scene import Frame, Scene
from normscope.xray.sightings import JoinPlace, Sighting, in_backward
from normscope.xray.tally import Tally, add_units, is_saturated
from normscope.xray.tensors import is_measurable

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


class FunctionWatch(TorchFunctionMode):
    """Sees every function of torch that is called on a tensor, and normscope's own kernels."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        scene = self._scene
        if not scene.looking or scene.is_skipping or in_backward():
            return func(*args, **kwargs)
        if func in OPENED:
            with self:
                return _opened(func)(*args, **kwargs)
        name = function_name(func)
        joins = self._joining(args) if name in ADDITIONS else None
        result = func(*args, **kwargs)
        if scene.stack:
            self._look(func, name, args, kwargs, result, joins)
        elif name == "cross_entropy":
            self._loss(func, args, kwargs, result)
        return result

    def _look(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        joins: "tuple[Sighting, Sighting] | None",
    ) -> None:
        frame = self._scene.stack[-1]
        flops = flops_of(name, args, kwargs, result)
        if flops:
            for outer in self._scene.stack:
                outer.tally.flops += flops
        if name in VIEWS:
            self._same_numbers(args, result)
        elif joins is not None and isinstance(result, Tensor):
            self._join(frame, joins, result)
        elif func is activate:
            self._activation(frame, args[0], args[1:], result)
        elif name in ACTIVATIONS:
            if activation_of(frame.module) is None:
                self._activation(frame, name, args, result)
        elif func is attend:
            q, k = args[:2]
            self._attention(frame, q.transpose(1, 2), k.transpose(1, 2), None, kwargs["causal"], kwargs["window"], None)
            pairs = q.numel() // q.shape[-1] * k.shape[1]
            for outer in self._scene.stack:
                outer.tally.flops += 4 * pairs * q.shape[-1]
        elif name == "scaled_dot_product_attention":
            given = dict(
                zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"), args, strict=False)
            )
            given |= kwargs
            self._attention(
                frame, given["query"], given["key"], given.get("attn_mask"), bool(given.get("is_causal")), None,
                given.get("scale"),
            )  # fmt: skip
        elif name == "softmax" and isinstance(result, Tensor):
            self._softmax(frame, args, kwargs, result)
        elif name == "cross_entropy":
            self._loss(func, args, kwargs, result)

    def _same_numbers(self, args: tuple[Any, ...], result: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(result, Tensor) or given is result:
            return
        if result.numel() == given.numel() and is_measurable(given) and is_measurable(result):
            known = self._scene.sightings.of(given)
            if known.makers or known.join:
                self._scene.sightings.share(result, known)

    def _joining(self, args: tuple[Any, ...]) -> "tuple[Sighting, Sighting] | None":
        """The stream and the branch of an addition, with their moments; None if it is not that kind of addition.

        The stream is the one that was read by a module before the other was made.
        """
        if self._scene.stack and len(args) >= 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
            a, b = args[:2]
            if a.shape == b.shape and a.dim() >= 2 and a is not b and is_measurable(a) and is_measurable(b):
                sightings = self._scene.sightings
                stream, branch = sorted((sightings.of(a), sightings.of(b)), key=lambda known: known.born)
                if stream.readers and branch.makers:
                    with torch._C.DisableTorchFunction():
                        sightings.moments(a)
                        sightings.moments(b)
                    return stream, branch
        return None

    def _join(self, frame: Frame, joins: "tuple[Sighting, Sighting]", result: Tensor) -> None:
        scene = self._scene
        stream, branch = joins
        index = frame.joins
        frame.joins += 1
        join = frame.tally.join(index)
        known = scene.sightings.renew(result)
        with torch._C.DisableTorchFunction():
            total = scene.sightings.moments(result)
        assert stream.moments is not None
        assert branch.moments is not None
        join.stream = join.stream.joined(stream.moments)
        join.branch = join.branch.joined(branch.moments)
        join.total = join.total.joined(total)
        join.from_stream = join.from_stream or next(iter(stream.makers), None)
        join.from_branch = join.from_branch or next(iter(branch.makers), None)
        known.join, known.channels = JoinPlace(frame.tally.name, index), stream.channels
        if stream.normed is not None:
            place, norm = stream.normed
            scene.tallies[place.module].join(place.index).normalized = norm

    def _function(self, frame: Frame, name: str) -> Tally:
        """The tally of a function's call: the second call of the same name in a module has a name of its own."""
        scene = self._scene
        frame.functions[name] = number = frame.functions.get(name, 0) + 1
        own = f"{name}()" if number == 1 else f"{name}()#{number}"
        full = f"{frame.tally.name}.{own}" if frame.tally.name else own
        if full not in scene.tallies:
            scene.tallies[full] = Tally(full, name, is_function=True, order=scene.next_order())
            scene.functions.setdefault(frame.tally.name, []).append(full)
        return scene.tallies[full]

    def _activation(self, frame: Frame, name: str, args: tuple[Any, ...], result: Any) -> None:
        if not isinstance(result, Tensor) or not is_measurable(result) or result.dim() == 0:
            return
        scene = self._scene
        tally = self._function(frame, name)
        given = next((x for x in args if isinstance(x, Tensor)), result)
        with torch._C.DisableTorchFunction():
            before = scene.sightings.of(given)
            if given is not result:
                tally.add_entering(scene.moments(given))
            axis = before.channels if given.dim() == result.dim() else -1
            known = scene.sightings.renew(result)
            known.makers, known.channels = [tally.name], axis
            measure_activation(tally, name, result, scene.moments(result), axis)
            tally.training = frame.module.training
            tally.fed_by.update(dict.fromkeys(before.makers[:1]))
            scene.watch_gradient(result, tally)
        tally.calls += 1
        if not tally.outputs:
            tally.inputs = tuple(tuple(x.shape) for x in args if isinstance(x, Tensor))
            tally.outputs, tally.dtype = (tuple(result.shape),), str(result.dtype).removeprefix("torch.")
        tally.bytes += result.nbytes

    def _attention(
        self,
        frame: Frame,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        window: int | None,
        scale: float | None,
    ) -> None:
        if not is_measurable(q) or not is_measurable(k):
            return
        tally = frame.tally
        tally.looks = Looks() if tally.looks is None else tally.looks
        with torch._C.DisableTorchFunction(), torch.no_grad():
            add_queries(tally.looks, q, k, mask=mask, causal=causal, window=window, scale=scale)

    def _softmax(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else kwargs.get("input")
        along = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(scores, Tensor) or along not in (-1, result.dim() - 1) or not is_measurable(result):
            return
        module = self._scene.stack[-1].module
        if result.dim() == 4 or (result.dim() == 3 and is_attention(module)):
            tally = frame.tally
            tally.looks = Looks() if tally.looks is None else tally.looks
            with torch._C.DisableTorchFunction(), torch.no_grad():
                add_softmax(tally.looks, scores, result)

    def _loss(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        logits = args[0] if args else kwargs.get("input")
        if kwargs.get("reduction", "mean") != "mean":  # a sum cannot be held against ln V
            return
        if isinstance(logits, Tensor) and isinstance(result, Tensor) and result.numel() == 1 and logits.dim() >= 2:
            axis = -1 if func is cross_entropy else 1
            with torch._C.DisableTorchFunction():
                self._scene.losses.append(record.Loss(float(result.detach()), int(logits.shape[axis])))


def measure_activation(tally: Tally, name: str, result: Tensor, moments: Any, axis: int) -> None:
    """The figures of an activation's output: of all of it, and of each unit."""
    bounds = BOUNDS.get(name)
    tally.add_output(moments, result)
    tally.units = add_units(tally.units, result, axis, bounds)
    if bounds is not None:
        tally.saturated = (tally.saturated or 0) + int(is_saturated(result.detach(), bounds).sum())


def _opened(function: Any) -> Callable[..., Any]:
    """The same function, which takes no notice of being watched: so that what it calls can be seen."""
    blind = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, blind, function.__name__, function.__defaults__, function.__closure__)
