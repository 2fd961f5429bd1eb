"""What was seen of one optimizer."""

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.tracked_parameter import TrackedParameter


@dataclass
class SeenOptimizer:
    """An optimizer, and what was seen of it. It is not kept alive; one in its place continues its record."""

    optimizer: "weakref.ref[Optimizer]"
    kind: str
    is_torch: bool
    settings: dict[str, Any] = field(default_factory=dict)
    recreated: int = 0
    is_adaptive: bool = False
    tracked: list[TrackedParameter] = field(default_factory=list)
    matrices: list[TrackedParameter] = field(default_factory=list)
    module: str = ""
    is_frozen: bool = True
    size: int = -1
    scheduled: int = 0
    is_nested: bool = False
    steps: int = 0
    discarded: int = 0
    without_gradient: int = 0
    zeroed: int = 0
    repeated: int = 0
    unchanged: int = 0
    gradients: int = 0
    """Gradients that its parameters had received at its last step or reset."""
    since_step: int = 0
    """The same at its last step."""
    changes: float = 0.0
    before: list[Tensor] = field(default_factory=list)
    last_gradient: Tensor | None = None
    pending: set[int] = field(default_factory=set)
    """The backward passes in its gradients."""
    used: list[frozenset[int]] = field(default_factory=list)
    """For each step, the backward passes in its gradients."""
    stepped_at: list[int] = field(default_factory=list)
    """For each step, the number of backward passes before it."""
    reached: set[int] = field(default_factory=set)
    """The backward passes that gave it a gradient."""
    counted: int = 0
    lr: list[float] = field(default_factory=list)
    peak_lr: float | None = None
    decay_share: float | None = None
    eps_share: float | None = None
    moved: float | None = None
    clipped: float | None = None

    def received(self) -> int:
        return sum(tracked.gradients for tracked in self.tracked)
