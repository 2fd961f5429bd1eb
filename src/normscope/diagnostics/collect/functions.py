"""What is called inside of modules: activations, additions to the stream, attention, losses, products."""

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normscope.diagnostics.collect.accumulators import Tally, UnitPlaces, is_saturated
from normscope.diagnostics.collect.attention import Looks, add_queries, add_softmax
from normscope.diagnostics.collect.flops import flops_of
from normscope.diagnostics.collect.kinds import (
    ACTIVATIONS,
    ADDITIONS,
    BOUNDS,
    OPENED,
    VIEWS,
    activation_of,
    function_name,
    heads_of,
    is_attention,
)
from normscope.diagnostics.collect.losses import KEEPS, SQUASHES, take_loss
from normscope.diagnostics.collect.session import Frame, Scene
from normscope.diagnostics.collect.tensor_registry import JoinPlace, Sighting, in_backward
from normscope.diagnostics.collect.tensors import is_measurable, shape_of
from normscope.diagnostics.collect.unregistered_parameters import Strangers
from normscope.ops.activations import activate
from normscope.ops.attention import attend

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_DROPS = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", *(f"dropout{n}d" for n in (1, 2, 3))}
_FACTORS = {"mul", "multiply", "__mul__", "__rmul__", "__imul__", "div", "divide", "true_divide", "__truediv__"}
_CALLS = 64
"""So many calls of one function, and so many additions, in one call of a module have figures of their own."""
_DATA: Any = torch._C.TensorBase.data


class FunctionWatch(TorchFunctionMode):
    """Sees every function of torch that is called on a tensor, and normscope's own kernels."""

    def __init__(self, scene: Scene, strangers: Strangers) -> None:
        super().__init__()
        self._scene, self._strangers = scene, strangers

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        scene = self._scene
        if scene.is_blind or scene.is_skipping or in_backward():
            return func(*args, **kwargs)
        if func in OPENED:
            with self:
                return _opened(func)(*args, **kwargs)
        name = function_name(func)
        joins = scene.look(f"`{name}()`", self._joining, args) if name in ADDITIONS else None
        scales = scene.stack and (name in _FACTORS or name in _DROPS)
        behind = scene.look(f"`{name}()`", self._scaled, name, args) if scales else None
        result = func(*args, **kwargs)
        if scene.stack:
            scene.look(f"`{name}()`", self._look, func, name, args, kwargs, result, joins, behind)
        elif name == "cross_entropy":
            scene.look("`cross_entropy()`", take_loss, scene, func, args, kwargs, result)
        elif name == "_amp_update_scale":
            scene.look("a GradScaler", self._scaler, args)
        if name in SQUASHES or (name in KEEPS and scene.squashed):
            where = scene.stack[-1].tally.name if scene.stack else None
            scene.look(f"`{name}()`", scene.squashed.follow, name, args, result, where)
        if name in ("__get__", "__set__") and getattr(func, "__self__", None) is _DATA:
            scene.look("`.data`", self._open_to_change, args)
        return result

    def _look(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        joins: "tuple[Sighting, Sighting] | None",
        behind: Sighting | None,
    ) -> None:
        frame = self._scene.stack[-1]
        self._count(flops_of(name, args, kwargs, result))
        self._strangers.look(frame.tally.name, name, args, kwargs, self._scene.sightings)
        if name in VIEWS:
            self._same_numbers(args, result)
        elif joins is not None and isinstance(result, Tensor):
            self._join(frame, joins, result)
        elif behind is not None and isinstance(result, Tensor):
            self._pass_on(behind, result)
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
            take_loss(self._scene, func, args, kwargs, result)

    def _count(self, flops: int | None) -> None:
        """Add to all that are running; each once, though it may be running inside of itself."""
        if flops == 0:
            return
        for tally in {outer.tally.name: outer.tally for outer in self._scene.stack}.values():
            tally.flops += flops or 0
            tally.uncounted = tally.uncounted or flops is None

    def _scaler(self, args: tuple[Any, ...]) -> None:
        """The third argument says whether it has found what is not finite, and has left the step out for that."""
        self._scene.skipped_steps += float(args[2]) > 0

    def _open_to_change(self, args: tuple[Any, ...]) -> None:
        """torch does not count what is changed by way of `.data`."""
        if args and isinstance(args[0], Tensor) and is_measurable(args[0]):
            self._scene.sightings.of(args[0]).unsure = True

    def _scaled(self, name: str, args: tuple[Any, ...]) -> "Sighting | None":
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
        known = self._scene.sightings.of(large)
        return known if known.makers or known.behind else None

    def _pass_on(self, known: Sighting, result: Tensor) -> None:
        """It is where it was in the model, though with other numbers."""
        sightings = self._scene.sightings
        if is_measurable(result) and sightings.of(result) is not known:
            makers = known.makers or known.behind
            other = replace(known, moments=None, makers=[], behind=makers, readers=list(known.readers))
            sightings.share(result, other)

    def _same_numbers(self, args: tuple[Any, ...], result: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(result, Tensor) or given is result:
            return
        if result.numel() == given.numel() and is_measurable(given) and is_measurable(result):
            known = self._scene.sightings.of(given)
            if known.makers or known.behind or known.join:
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
                if stream.readers and (branch.makers or branch.behind) and stream.born < branch.born:
                    with torch._C.DisableTorchFunction():
                        sightings.moments(a)
                        sightings.moments(b)
                    return stream, branch
        return None

    def _join(self, frame: Frame, joins: "tuple[Sighting, Sighting]", result: Tensor) -> None:
        scene = self._scene
        stream, branch = joins
        index = min(frame.joins, _CALLS - 1)
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
        join.from_stream = join.from_stream or next(iter(stream.makers or stream.behind), None)
        join.from_branch = join.from_branch or next(iter(branch.makers or branch.behind), None)
        known.join, known.channels = JoinPlace(frame.tally.name, index), stream.channels
        if stream.normed is not None:
            place, norm = stream.normed
            scene.tallies[place.module].join(place.index).normalized = norm

    def _function(self, frame: Frame, name: str) -> Tally:
        """The tally of a function's call: the second call of the same name in a module has a name of its own."""
        scene = self._scene
        frame.functions[name] = number = min(frame.functions.get(name, 0) + 1, _CALLS + 1)
        if number > _CALLS:
            where = f"`{frame.tally.name}`" if frame.tally.name else "the model"
            scene.notice(
                f"`{name}()` was called more than {_CALLS} times in {where}: the rest counts as one with the last"
            )
            number = _CALLS
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
            measure_activation(tally, name, result, scene.moments(result), axis, before.place)
            tally.training = frame.module.training
            tally.fed_by.update(dict.fromkeys(before.makers[:1]))
            scene.watch_gradient(result, tally)
        tally.calls += 1
        if not tally.outputs:
            tally.inputs = tuple(shape_of(x) for x in args if isinstance(x, Tensor))
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
                add_softmax(tally.looks, scores, heads_of(module))


def measure_activation(tally: Tally, name: str, result: Tensor, moments: Any, axis: int, after: str) -> None:
    """The figures of an activation's output: of all of it, and of each unit."""
    bounds = BOUNDS.get(name)
    tally.add_output(moments, result)
    tally.units = UnitPlaces() if tally.units is None else tally.units
    tally.units.add(result, axis, bounds, after)
    if bounds is not None:
        tally.saturated = (tally.saturated or 0) + int(is_saturated(result.detach(), bounds).sum())


def _opened(function: Any) -> Callable[..., Any]:
    """The same function, which takes no notice of being watched: so that what it calls can be seen."""
    blind = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, blind, function.__name__, function.__defaults__, function.__closure__)
