"""See the calls of a training loop without hooks of torch: backward, zero_grad, schedulers, gradient clipping, loaders.

Calls of any module are seen too: with a global hook instead, torch.compile would warn.

While anybody listens, the functions are replaced by wrappers, which call them with the same arguments. Afterwards the
originals are back.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader


class Listener(Protocol):
    """Gets an event by name, such as `before_backward`, with its arguments, as in `Watcher`."""

    def __call__(self, event: str, *args: Any) -> None: ...


_listeners: list[Listener] = []
_originals: list[tuple[Any, str, Any, Any]] = []  # holder, name, the original, the wrapper
_installed: set[Callable[..., Any]] = set()
_lock = threading.Lock()
_running = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener about the calls of this process while the block runs."""
    with _lock:
        if not _listeners:
            _install()
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            if not _listeners:
                _restore()


def _install() -> None:
    _replace(torch.autograd, "backward", _backward)
    _replace(Optimizer, "zero_grad", _before("zero_grad"))
    _replace(nn.Module, "zero_grad", _before("zero_grad"))
    _replace(nn.Module, "__call__", _call_module)
    if hasattr(clip_grad, "_clip_grads_with_norm_"):  # clip_grad_norm_ itself is often imported by name
        _replace(clip_grad, "_clip_grads_with_norm_", _clip)
    _replace(DataLoader, "__iter__", _before("iterate_loader"))
    for scheduler in _with_subclasses(LRScheduler):
        if "step" in vars(scheduler):
            _replace(scheduler, "step", _step_schedule)


def _replace(holder: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(holder, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if wrapped not in _installed:  # nobody listens any more, but someone else's wrapper still calls this one
            return original(*args, **kwargs)
        return wrapper(original, *args, **kwargs)

    _originals.append((holder, name, original, wrapped))
    _installed.add(wrapped)
    setattr(holder, name, wrapped)


def _restore() -> None:
    _installed.clear()
    while _originals:
        holder, name, original, wrapped = _originals.pop()
        if getattr(holder, name) is wrapped:  # otherwise someone else has replaced it meanwhile
            setattr(holder, name, original)


def _with_subclasses(root: type) -> Iterator[type]:
    yield root
    kind: type
    for kind in root.__subclasses__():
        yield from _with_subclasses(kind)


def _tell(event: str, *args: Any) -> None:
    for listener in tuple(_listeners):
        listener(event, *args)


def _backward(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    is_one = isinstance(tensors, torch.Tensor | GradientEdge)
    given = [tensors] if is_one else list(tensors)
    roots = [root for root in given if isinstance(root, torch.Tensor)]
    _tell("before_backward", roots)
    try:
        return original(tensors if is_one else given, *args, **kwargs)
    finally:
        _tell("after_backward", roots)


def _before(event: str) -> Callable[..., Any]:
    def call(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(event, owner)
        return original(owner, *args, **kwargs)

    return call


def _call_module(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    _tell("call_outside_module", module, args)
    return original(module, *args, **kwargs)


def _step_schedule(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """A scheduler may step others, or call the method of its base class: only the outermost call counts."""
    depth = getattr(_running, "schedulers", 0)
    _running.schedulers = depth + 1
    try:
        result = original(scheduler, *args, **kwargs)
    finally:
        _running.schedulers = depth
    if not depth:
        _tell("step_schedule", scheduler)
    return result


def _clip(
    original: Callable[..., Any], parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
) -> Any:
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    _tell("clip_gradients", parameters, total_norm, max_norm)
    return original(parameters, max_norm, total_norm, *args, **kwargs)
