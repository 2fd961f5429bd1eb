"""What modules take and give: a hook before and a hook after each, for as long as the x-ray looks."""

import sys
import threading
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.accumulators import ModuleAccumulator, add_units
from normscope.diagnostics.collect.functions import measure_activation
from normscope.diagnostics.collect.hooks import Hook
from normscope.diagnostics.collect.kinds import activation_of, has_channels_second, is_linear, kind_of
from normscope.diagnostics.collect.norms import add_norm, is_norm
from normscope.diagnostics.collect.session import CallFrame, XraySession
from normscope.diagnostics.collect.tensor_registry import in_backward
from normscope.diagnostics.collect.tensors import is_measurable, is_only_masked, is_readable, shape_of, tensors_in

COMPILED = "compiled parts were run as they are written while the x-ray looked"


class ModuleHooks:
    """Hooks on every module of a model, each once, under its first name."""

    def __init__(self, model: nn.Module, session: XraySession) -> None:
        self._model, self._session = model, session
        self.names: dict[nn.Module, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            first = self.names.setdefault(module, name)
            session.accumulators[name] = ModuleAccumulator(
                name, kind_of(module), same_as=None if first == name else first
            )
        self._handles: list[Any] = []
        self._finite_weights: dict[nn.Module, bool] = {}
        self._outermost: dict[str, int] = {}  # how often modules were called that no other one was calling
        self._thread: int | None = None

    def start(self, inside: bool = True) -> None:
        before, after = Hook(self._before), Hook(self._after)
        self._thread = threading.get_ident()
        for module in self.names if inside else [self._model]:
            if isinstance(module, torch.jit.ScriptModule):
                self._session.notice("modules that are scripted or traced take no hooks, and are not looked at")
                continue
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def batches(self) -> int:
        """How many passes there were. Of a model that is never called itself, but a method of it that calls its parts,
        as many as there were calls of the part that was called least often."""
        return self._session.batches or min(self._outermost.values(), default=0)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        session = self._session
        if session.is_paused:
            return
        name = self.names.get(module)
        if name is None:
            session.notice("a copy of a module was called, which has its hooks; it is not looked at")
            return
        frame = CallFrame(module, session.accumulators[name], skipped=in_backward())
        if not frame.skipped:
            session.guarded(f"the call of {type(module).__name__}", self._count, frame)
        session.stack.append(frame)
        if not frame.skipped:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                session.guarded(
                    f"what {type(module).__name__} is given", self._take_inputs, module, frame, args, kwargs
                )

    def _count(self, frame: CallFrame) -> None:
        session, accumulator, module = self._session, frame.accumulator, frame.module
        if module is self._model and not any(outer.module is module for outer in session.stack):
            session.batches += 1
            session.stack.clear()  # whatever an error has left there
        elif not session.stack:
            self._outermost[accumulator.name] = self._outermost.get(accumulator.name, 0) + 1
        if accumulator.order is None:
            accumulator.order, accumulator.training = session.next_order(), module.training
            accumulator.kind = kind_of(module)  # a lazy one is of another class from now on
            self._tell(module)
        accumulator.calls += 1

    def _tell(self, module: nn.Module) -> None:
        """What cannot be seen of it, or not as it is."""
        if threading.get_ident() != self._thread:
            self._session.notice("the model was called in another thread, where no functions are seen, only modules")
        if _in_compiled_code():
            self._session.notice(COMPILED)
        fast = isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer) and not module.training
        if fast and not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())):
            self._session.notice(
                f"{type(module).__name__}: without the fast way that torch has for evaluation, for nothing in it could "
                f"be seen; what it gives at padded places may be other than it is without the x-ray"
            )

    def _take_inputs(self, module: nn.Module, frame: CallFrame, args: Any, kwargs: Any) -> None:
        session, accumulator = self._session, frame.accumulator
        given = list(tensors_in((args, kwargs)))
        real = [t for t in given if is_measurable(t)]
        if not accumulator.inputs:
            accumulator.inputs = tuple(shape_of(t) for t in given)
        if len(session.stack) == 1 and given and is_readable(given[0]):  # it comes from outside of the model
            accumulator.entering_prints.add(given[0])
        found = []
        for tensor in real:
            known = session.registry.of(tensor)
            known.consumers.append(accumulator.name)
            accumulator.fed_by.update(dict.fromkeys(known.producers[:1]))
            found.append(session.moments(tensor))
            if found[-1].non_finite:
                hides = is_only_masked(tensor)
                frame.masked_inputs = frame.masked_inputs or hides
                frame.finite_inputs = frame.finite_inputs and hides and tensor is not real[0]
                accumulator.given_unreal = accumulator.given_unreal or not hides
        if real:
            accumulator.add_entering(found[0])
            known = session.registry.of(real[0])
            frame.channels, frame.place = known.channels, known.place
            axis = _channels_of(module, real[0])
            if is_norm(module, accumulator.name):
                frame.after_join = None if known.join is None else (known.join, accumulator.name)
                if real[0].numel():
                    accumulator.norm = add_norm(
                        accumulator.norm, module, real[0], known.channels if axis is None else axis
                    )
            elif is_linear(module) and real[0].dim() >= 2:
                accumulator.features = add_units(accumulator.features, real[0], -1 if axis is None else axis, None)

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        session = self._session
        if session.is_paused or not any(frame.module is module for frame in session.stack):
            return
        while session.stack[-1].module is not module:  # those that an error took away
            session.stack.pop()
        frame = session.stack.pop()
        if frame.skipped:
            if frame.accumulator.without_grad:
                session.guarded(
                    f"what {type(module).__name__} gives again", self._watch_again, frame.accumulator, output
                )
            return
        with torch._C.DisableTorchFunction():
            session.guarded(f"what {type(module).__name__} gives", self._take_outputs, module, frame, output)

    def _watch_again(self, accumulator: ModuleAccumulator, output: Any) -> None:
        """The first time a checkpoint computed this without gradients; now they will come."""
        self._session.notice("in reentrant checkpoints only modules show gradients, and functions show none")
        main = _main([tensor for tensor in tensors_in(output) if is_measurable(tensor)])
        if main is not None:
            self._session.watch_gradient(main, accumulator)

    def _take_outputs(self, module: nn.Module, frame: CallFrame, output: Any) -> None:
        session, accumulator = self._session, frame.accumulator
        given = list(tensors_in(output))
        real = [t for t in given if is_measurable(t)]
        if not accumulator.outputs:
            accumulator.outputs = tuple(shape_of(t) for t in given)
            accumulator.dtype = str(real[0].dtype).removeprefix("torch.") if real else None
        main = _main(real)
        non_finite = []
        for tensor in real:
            known = session.registry.of(tensor)
            if not known.producers:  # the innermost one; else a module passes on what one inside of it has made
                axis = _channels_of(module, tensor)
                known.channels = frame.channels if axis is None else axis
            if accumulator.name not in known.producers:
                known.producers.append(accumulator.name)
            if frame.after_join is not None:  # if the next addition has this as its stream, it is a post-norm
                known.normalized_join = frame.after_join
            moments = session.moments(tensor)
            non_finite += [tensor] if moments.non_finite else []
            accumulator.bytes += tensor.nbytes
            if tensor is main:
                kind = activation_of(module)
                if kind is not None and tensor.dim():
                    measure_activation(accumulator, kind, tensor, moments, known.channels, frame.place)
                else:
                    accumulator.add_output(moments, tensor)
                accumulator.without_grad = not tensor.requires_grad
                session.watch_gradient(tensor, accumulator)
        if non_finite:
            self._take_unreal(module, frame, non_finite)

    def _take_unreal(self, module: nn.Module, frame: CallFrame, non_finite: list[Tensor]) -> None:
        """Outputs that are not finite. Minus infinity from minus infinity is a mask that is passed on."""
        accumulator, hides = frame.accumulator, all(is_only_masked(tensor) for tensor in non_finite)
        accumulator.only_hides = hides and (accumulator.only_hides or not accumulator.seen_unreal)
        accumulator.seen_unreal = True
        if not frame.finite_inputs or (hides and frame.masked_inputs):
            return
        if not self._made_inside(accumulator) and self._has_finite_weights(module):
            accumulator.made_unreal = True

    def _made_inside(self, accumulator: ModuleAccumulator) -> bool:
        """Whether one of those inside of it was the maker: the innermost one is meant."""
        prefix = f"{accumulator.name}." if accumulator.name else ""
        others = self._session.accumulators.items()
        return any(other.made_unreal and other is not accumulator and name.startswith(prefix) for name, other in others)

    def _has_finite_weights(self, module: nn.Module) -> bool:
        if module not in self._finite_weights:
            own = [p for p in module.parameters() if is_measurable(p)]
            self._finite_weights[module] = all(self._session.moments(p).non_finite == 0 for p in own)
        return self._finite_weights[module]


def _in_compiled_code() -> bool:
    """Whether a function that torch has compiled is among those that are running, and is being run as it is written."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    frame: Any = sys._getframe() if compiler is not None else None
    while frame is not None:
        if frame.f_code.co_filename == getattr(compiler, "__file__", None):
            return True
        frame = frame.f_back
    return False


def _main(real: list[Tensor]) -> Tensor | None:
    """The tensor that an output is about: a loss may stand before the logits."""
    return next((tensor for tensor in real if tensor.dim()), real[0] if real else None)


def _channels_of(module: nn.Module, tensor: Tensor) -> int | None:
    """The axis of the channels of what it takes and gives; None if it does not say."""
    second = has_channels_second(module)
    if second is None:
        return None
    if not second:
        return -1
    if isinstance(module, nn.modules.conv._ConvNd):
        return 1 if tensor.dim() == len(module.kernel_size) + 2 else 0  # one image alone has no first axis
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return 1 if tensor.dim() != module._get_no_batch_dim() else 0
    return 1 if tensor.dim() > 1 else 0
