"""Classes that are made while the program runs: a fused `forward` in front of the class that it replaces."""

from typing import Any

from torch import nn

from normscope.interop.fuse.module_copies import own_attributes

FORMULA_ATTRIBUTE = "_normscope_form"
"""The attribute of a fused module that says what it computes; None once that is no longer known."""

RANKS = (2, 3, 4)
"""The ranks of inputs on which a formula is recognised and proven."""


class FusedModuleBase(nn.Module):
    """What is in front: its subclasses have the fused `forward`, and go to the old one with what was not proven."""

    _normscope_kind: type[nn.Module]

    def __setattr__(self, name: str, value: Any) -> None:
        # The proof was for the settings of that time. With others the old forward knows what to do.
        if name in own_attributes(self) and name != FORMULA_ATTRIBUTE and vars(self)[name] is not value:
            vars(self)[FORMULA_ATTRIBUTE] = None
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy or a file cannot name a class that was made here, but it can name the two that it was made from.
        front = type(self).__mro__[1]
        return _empty, (front, self._normscope_kind), self.__getstate__()  # type: ignore[no-untyped-call]


_made: dict[tuple[type[FusedModuleBase], type[nn.Module]], type[nn.Module]] = {}


def fused_class(front: type[FusedModuleBase], kind: type[nn.Module]) -> type[nn.Module]:
    """The fused form of a class: a subclass of it, so that whoever asks for its kind or its attributes finds them.

    Its name has the old one in it, because libraries go by names too when they set the first values.
    """
    if (front, kind) not in _made:
        members = {"__module__": __name__, "__doc__": f"{kind.__name__} with a fused forward.", "_normscope_kind": kind}
        _made[front, kind] = type(f"Fused{kind.__name__}", (front, kind), members)
    return _made[front, kind]


def _empty(front: type[FusedModuleBase], kind: type[nn.Module]) -> nn.Module:
    """An object of the fused class, for its state to be put into."""
    made = fused_class(front, kind)
    empty: nn.Module = made.__new__(made)
    return empty
