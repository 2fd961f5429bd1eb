"""Change the class of a module in place, and undo it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class ClassChange:
    """The class that a module gets when it is fused, and the attributes that the class needs."""

    kind: type[nn.Module]
    text: str
    """Description for the report."""
    what: Literal["norm", "activation"] = "norm"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[tuple[str, str], ...] = ()
    """Parameters and buffers that the class expects and that are None here: ("_buffers", "running_mean")."""

    def apply(self, module: nn.Module) -> "AppliedChange":
        """Apply the change. Existing attributes stay unchanged."""
        own = vars(module)
        added = [name for name in self.attributes if name not in own]
        missing = [(where, name) for where, name in self.missing if not hasattr(module, name)]
        applied = AppliedChange(module, type(module), self.kind, tuple(added), tuple(missing))
        module.__class__ = self.kind  # first: if the class cannot be changed, this raises before anything else changes
        for name in added:
            value = self.attributes[name]
            own[name] = copy.copy(value) if isinstance(value, dict) else value  # do not share dictionaries
        for where, name in missing:
            own[where][name] = None
        return applied


@dataclass(frozen=True)
class AppliedChange:
    """An applied change."""

    module: nn.Module
    before: type[nn.Module]
    after: type[nn.Module]
    attributes: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]

    def undo(self) -> None:
        """Restore the old class, unless the class was changed again since."""
        if type(self.module) is not self.after:
            return
        self.module.__class__ = self.before
        for name in self.attributes:
            vars(self.module).pop(name, None)
        for where, name in self.missing:
            vars(self.module)[where].pop(name, None)
