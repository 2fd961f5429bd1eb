"""What modules take and give: a hook before and a hook after each, for as long as the x-ray looks."""

from typing import Any

import torch
from torch import nn

from normscope.xray.functions import measure_activation
from normscope.xray.kinds import activation_of, has_channels_second, is_linear
from normscope.xray.norms import add_norm, is_norm
from normscope.xray.scene import Frame, Scene
from normscope.xray.sightings import in_backward
from normscope.xray.tally import Tally, add_units
from normscope.xray.tensors import is_measurable, tensors_in


class ModuleWatch:
    """Hooks on every module of a model, each once, under its first name."""

    def __init__(self, model: nn.Module, scene: Scene) -> None:
        self._model, self._scene = model, scene
        self.names: dict[nn.Module, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            first = self.names.setdefault(module, name)
            scene.tallies[name] = Tally(name, type(module).__name__, same_as=None if first == name else first)
        self._handles: list[Any] = []
        self._finite_weights: dict[nn.Module, bool] = {}

    def start(self, inside: bool = True) -> None:
        for module in self.names if inside else [self._model]:
            if isinstance(module, torch.jit.ScriptModule):
                self._scene.notice("modules that are scripted show nothing of what is inside of them")
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after, with_kwargs=True, always_call=True))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        scene = self._scene
        if not scene.looking:
            return
        tally = scene.tallies[self.names[module]]
        frame = Frame(module, tally, skipped=in_backward())
        if module is self._model and not frame.skipped:
            scene.batches += 1
            scene.stack.clear()  # whatever an error has left there
        scene.stack.append(frame)
        if frame.skipped:
            return
        if tally.order is None:
            tally.order, tally.training = scene.next_order(), module.training
        tally.calls += 1
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._take_inputs(module, frame, args, kwargs)

    def _take_inputs(self, module: nn.Module, frame: Frame, args: Any, kwargs: Any) -> None:
        scene, tally = self._scene, frame.tally
        given = list(tensors_in((args, kwargs)))
        real = [t for t in given if is_measurable(t)]
        if not tally.inputs:
            tally.inputs = tuple(tuple(t.shape) for t in given)
        for tensor in real:
            known = scene.sightings.of(tensor)
            known.readers.append(tally.name)
            tally.fed_by.update(dict.fromkeys(known.makers[:1]))
            if scene.moments(tensor).unreal:
                frame.finite_inputs = False
        if real:
            tally.add_entering(scene.moments(real[0]))
            known = scene.sightings.of(real[0])
            axis = frame.channels = known.channels
            if is_norm(module):
                frame.after_join = None if known.join is None else (known.join, tally.name)
                second = has_channels_second(module)
                tally.norm = add_norm(tally.norm, module, real[0], axis if second is None else 1 if second else -1)
            elif is_linear(module) and real[0].dim() >= 2:
                tally.features = add_units(tally.features, real[0], 1 if has_channels_second(module) else -1, None)

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        scene = self._scene
        if not scene.looking or not scene.stack:
            return
        while scene.stack and scene.stack[-1].module is not module:  # those that an error took away
            scene.stack.pop()
        if not scene.stack:
            return
        frame = scene.stack.pop()
        if frame.skipped:
            if frame.tally.gradient is None:
                self._watch_again(frame.tally, output)
            return
        with torch._C.DisableTorchFunction():
            self._take_outputs(module, frame, output)

    def _watch_again(self, tally: Tally, output: Any) -> None:
        """The first time a checkpoint computed this without gradients; now they will come."""
        for tensor in tensors_in(output):
            self._scene.watch_gradient(tensor, tally)

    def _take_outputs(self, module: nn.Module, frame: Frame, output: Any) -> None:
        scene, tally = self._scene, frame.tally
        given = list(tensors_in(output))
        real = [t for t in given if is_measurable(t)]
        if not tally.outputs:
            tally.outputs = tuple(tuple(t.shape) for t in given)
            tally.dtype = str(real[0].dtype).removeprefix("torch.") if real else None
        main = next((t for t in real if t.dim()), real[0] if real else None)  # a loss may stand before the logits
        unreal = False
        for tensor in real:
            known = scene.sightings.of(tensor)
            if not known.makers:  # the innermost one; else a module passes on what one inside of it has made
                second = has_channels_second(module)
                known.channels = frame.channels if second is None else 1 if second else -1
            if tally.name not in known.makers:
                known.makers.append(tally.name)
            if frame.after_join is not None:  # if the next addition has this as its stream, it is a post-norm
                known.normed = frame.after_join
            moments = scene.moments(tensor)
            unreal = unreal or moments.unreal > 0
            tally.bytes += tensor.nbytes
            if tensor is main:
                kind = activation_of(module)
                if kind is not None and tensor.dim():
                    measure_activation(tally, kind, tensor, moments, known.channels)
                else:
                    tally.add_output(moments, tensor)
                scene.watch_gradient(tensor, tally)
        if unreal and frame.finite_inputs and not self._made_inside(tally) and self._has_finite_weights(module):
            tally.made_unreal = True

    def _made_inside(self, tally: Tally) -> bool:
        """Whether one of those inside of it was the maker: the innermost one is meant."""
        prefix = f"{tally.name}." if tally.name else ""
        others = self._scene.tallies.items()
        return any(other.made_unreal and other is not tally and name.startswith(prefix) for name, other in others)

    def _has_finite_weights(self, module: nn.Module) -> bool:
        if module not in self._finite_weights:
            own = [p for p in module.parameters() if is_measurable(p)]
            self._finite_weights[module] = all(self._scene.moments(p).unreal == 0 for p in own)
        return self._finite_weights[module]
