"""Create fused subclasses at run time: a mixin with a fused `forward` before the original class."""

from typing import Any

from torch import nn

from normscope.interop.fuse.module_copies import own_attributes

FORMULA_ATTRIBUTE = "_normscope_form"
"""Attribute of a fused module with its formula; None once an attribute change invalidates it."""

RANKS = (2, 3, 4)
"""Input ranks on which a formula is recognized and verified."""


class FusedModuleBase(nn.Module):
    """Mixin with a fused `forward`, which falls back to the original for inputs that were not verified."""

    _normscope_kind: type[nn.Module]

    def __setattr__(self, name: str, value: Any) -> None:
        # Equivalence was verified for the old attributes; with others, use the original forward.
        if name in own_attributes(self) and name != FORMULA_ATTRIBUTE and vars(self)[name] is not value:
            vars(self)[FORMULA_ATTRIBUTE] = None
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was created at run time and cannot be pickled by name, but its two bases can.
        front = type(self).__mro__[1]
        return _empty, (front, self._normscope_kind), self.__getstate__()  # type: ignore[no-untyped-call]


_classes: dict[tuple[type[FusedModuleBase], type[nn.Module]], type[nn.Module]] = {}


def fused_class(front: type[FusedModuleBase], kind: type[nn.Module]) -> type[nn.Module]:
    """Return the fused subclass of a class, so that isinstance checks and attributes keep working.

    Its name contains the original one: libraries look at class names to initialize weights.
    """
    if (front, kind) not in _classes:
        members = {"__module__": __name__, "__doc__": f"{kind.__name__} with a fused forward.", "_normscope_kind": kind}
        _classes[front, kind] = type(f"Fused{kind.__name__}", (front, kind), members)
    return _classes[front, kind]


def _empty(front: type[FusedModuleBase], kind: type[nn.Module]) -> nn.Module:
    """An instance of the fused class without state, for unpickling."""
    made = fused_class(front, kind)
    empty: nn.Module = made.__new__(made)
    return empty
