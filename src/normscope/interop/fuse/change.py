"""The change of a module's class, in place, and the way back."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class ClassChange:
    """What a module gets when it is fused: a class, and what that class needs besides."""

    kind: type[nn.Module]
    text: str
    """What it becomes, in a few words for the report."""
    what: Literal["norm", "activation"] = "norm"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    nothing: tuple[tuple[str, str], ...] = ()
    """Parameters and buffers that the class asks for and that are None here: ("_buffers", "running_mean")."""

    def apply(self, module: nn.Module) -> "AppliedChange":
        """Make it. What the module has already stays as it is."""
        own = vars(module)
        added = [name for name in self.attributes if name not in own]
        nothing = [(where, name) for where, name in self.nothing if not hasattr(module, name)]
        applied = AppliedChange(module, type(module), self.kind, tuple(added), tuple(nothing))
        module.__class__ = self.kind  # first: a class that cannot be changed is refused here, with nothing done yet
        for name in added:
            value = self.attributes[name]
            own[name] = copy.copy(value) if isinstance(value, dict) else value  # no dictionary is shared
        for where, name in nothing:
            own[where][name] = None
        return applied


@dataclass(frozen=True)
class AppliedChange:
    """A change that was made."""

    module: nn.Module
    before: type[nn.Module]
    after: type[nn.Module]
    attributes: tuple[str, ...]
    nothing: tuple[tuple[str, str], ...]

    def undo(self) -> None:
        """Give the module its class back, unless someone has given it a third one since."""
        if type(self.module) is not self.after:
            return
        self.module.__class__ = self.before
        for name in self.attributes:
            vars(self.module).pop(name, None)
        for where, name in self.nothing:
            vars(self.module)[where].pop(name, None)
