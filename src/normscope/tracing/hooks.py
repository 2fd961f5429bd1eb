"""Install hooks and remove them again. Copying or saving a hooked model does not take the hooks along."""

from collections.abc import Callable
from typing import Any


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
