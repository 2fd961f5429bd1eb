"""Hooks that belong to one model: what is copied or saved while the x-ray looks takes nothing of it along."""

from collections.abc import Callable
from typing import Any


def noop(*_: Any) -> None:
    """What a hook is in a copy of the model."""


class Hook:
    """Calls a function. Copied with its module, or read from a file, it calls nothing.

    >>> import copy
    >>> hook = Hook(print)
    >>> hook("seen")
    seen
    >>> copy.deepcopy(hook)("not seen")
    """

    __torch_unserializable__ = True  # else torch warns that a tensor is saved without its hooks

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, (noop,)


class HookHandles:
    """The hooks that were put on tensors, to take them off again; those of tensors that are gone are forgotten."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._most = 1024

    def add(self, handle: Any) -> None:
        self._handles.append(handle)
        if len(self._handles) > self._most:
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._most = max(1024, 2 * len(self._handles))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
