"""Change the class of a module in place, and undo it."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class ClassChange:
    """The class that a module gets when it is fused, and the attributes that the class needs."""

    kind: type[nn.Module]
    text: str
    """Description for the report."""
    what: Literal["norm", "activation"]
    attributes: Mapping[str, Any]
    missing: tuple[tuple[str, str], ...] = ()
    """Parameters and buffers that the class expects and that are None here: ("_buffers", "running_mean")."""

    def apply(self, module: nn.Module) -> Callable[[], None]:
        """Apply the change, and return a function that undoes it. Existing attributes stay unchanged."""
        before, own = type(module), vars(module)
        added = [name for name in self.attributes if name not in own]
        missing = [(where, name) for where, name in self.missing if not hasattr(module, name)]
        module.__class__ = self.kind  # first: if the class cannot be changed, this raises before anything else changes
        for name in added:
            value = self.attributes[name]
            own[name] = copy.copy(value) if isinstance(value, dict) else value  # do not share dictionaries
        for where, name in missing:
            own[where][name] = None

        def undo() -> None:
            if type(module) is not self.kind:
                return  # it was changed again since
            module.__class__ = before
            for name in added:
                vars(module).pop(name, None)
            for where, name in missing:
                vars(module)[where].pop(name, None)

        return undo
