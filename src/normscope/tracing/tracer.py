"""Trace a running model: a `Tracer` reports module calls, torch functions and gradients to an observer.

Drawings, the x-ray and the NaN guard are observers. Copying or saving a hooked model does not take the hooks along.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.overrides import TorchFunctionMode

from normscope.tracing.function_kinds import decomposed, function_name


def noop(*_: Any) -> None:
    """Replace a hook in a copy of the model."""


class Hook:
    """Call a function. A copied or unpickled hook does nothing.

    >>> import copy
    >>> hook = Hook(print)
    >>> hook("seen")
    seen
    >>> copy.deepcopy(hook)("not seen")
    """

    __torch_unserializable__ = True  # otherwise torch warns that a tensor is saved without its hooks

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, (noop,)


class HookHandles:
    """Handles of installed hooks. Handles of tensors that no longer exist are dropped.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> handles = HookHandles()
    >>> handles.add(layer.register_forward_hook(Hook(noop)))
    >>> handles.remove()
    >>> len(layer._forward_hooks)
    0
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._max_handles = 1024

    def add(self, handle: Any) -> None:
        self._handles.append(handle)
        if len(self._handles) > self._max_handles:
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._max_handles = max(1024, 2 * len(self._handles))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


@dataclass(frozen=True)
class FunctionCall:
    """A call of a torch function.

    Args:
        function: the function.
        name: its normalized name, such as "add" for `x + y`, `x += y` and `torch.add`.
        args, kwargs: its arguments.
        frames: the frames of the module calls around it, the outermost first.
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frames: Sequence[Any]

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)


class TraceObserver:
    """The events of a running model. Override those of interest."""

    def enter_module(self, module: nn.Module, name: str | None, args: Any, kwargs: Any, frames: Sequence[Any]) -> Any:
        """A module is called. Return a frame, which `exit_module` and functions inside get; None to ignore the call.

        `name` is the module's first name in the model; None for a copy of a module that kept its hooks.
        """

    def exit_module(self, frame: Any, output: Any) -> None:
        """A module's call ended: with its output, or with None after an error."""

    def is_recording(self, frames: Sequence[Any]) -> bool:
        """Whether `call_function` wants to see functions now."""
        return True

    def call_function(self, call: FunctionCall) -> Any:
        """A torch function is called. Run it with `call.run()`, and return the result."""
        return call.run()

    def decompose(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return an implementation made of other torch functions, to see these instead; None for most functions."""
        return decomposed(function)

    def exit_backward(self, name: str, module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
        """The backward pass of a module ended."""


class _CallStack(threading.local):
    """The frames of the running calls of each thread, and their modules."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.frames: list[Any] = []


class Tracer:
    """Report to an observer what a model does inside a `with` block. At its end all hooks are removed.

    >>> class Print(TraceObserver):
    ...     def enter_module(self, module, name, args, kwargs, frames):
    ...         return name
    ...     def call_function(self, call):
    ...         print(call.frames, call.name)
    ...         return call.run()
    >>> import torch
    >>> model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    >>> with Tracer(model, Print()) as tracer:
    ...     tracer.watch_modules()
    ...     tracer.watch_functions()
    ...     y = model(x)
    ['', '0'] linear
    ['', '1'] relu

    Args:
        model: any torch module.
        observer: what to report to.
    """

    def __init__(self, model: nn.Module, observer: TraceObserver) -> None:
        self.model, self.observer = model, observer
        self.names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._stack = _CallStack()
        self._handles = HookHandles()
        self._modes = ExitStack()

    def watch_modules(self, modules: Iterable[nn.Module] | None = None, *, prepend: bool = False) -> None:
        """Report calls of these modules (by default all), also if they raise.

        With `prepend`, `enter_module` runs before all other pre-hooks.
        """
        enter, leave = Hook(self._enter), Hook(self._exit)
        for module in self.names if modules is None else modules:
            self._handles.add(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=prepend))
            self._handles.add(module.register_forward_hook(leave, with_kwargs=True, always_call=True))

    def watch_functions(self) -> None:
        """Report the torch functions that this thread calls."""
        self._modes.enter_context(_FunctionMode(self))

    def watch_backward(self, modules: Iterable[nn.Module]) -> None:
        """Report the backward pass of these modules."""
        for module in modules:
            report = partial(self.observer.exit_backward, self.names[module])
            self._handles.add(module.register_full_backward_hook(Hook(report)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._modes.close()
        self._handles.remove()
        self._stack = _CallStack()

    @property
    def frames(self) -> list[Any]:
        """The frames of the running calls of this thread, the outermost first."""
        return self._stack.frames

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        stack = self._stack
        if module is self.model and not any(outer is module for outer in stack.modules):
            stack.frames.clear()  # left by an error
            stack.modules.clear()
        frame = self.observer.enter_module(module, self.names.get(module), args, kwargs, stack.frames)
        if frame is not None:
            stack.frames.append(frame)
            stack.modules.append(module)

    def _exit(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        stack = self._stack
        if not any(running is module for running in stack.modules):
            return
        while stack.modules.pop() is not module:  # calls that ended with an error
            stack.frames.pop()
        self.observer.exit_module(stack.frames.pop(), output)


class _FunctionMode(TorchFunctionMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        observer, frames = self._tracer.observer, self._tracer.frames
        if not observer.is_recording(frames):
            return func(*args, **kwargs or {})
        parts = observer.decompose(func)
        if parts is not None:
            with self:  # a mode is inactive while it handles a function
                return parts(*args, **kwargs or {})
        return observer.call_function(FunctionCall(func, function_name(func), args, kwargs or {}, frames))
