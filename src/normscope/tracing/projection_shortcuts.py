"""Recognize residual additions whose shortcut is a projection: y = f(x) + shortcut(x), as in ResNet downsampling.

The x-ray and the drawings use this one rule. An addition is such a join if

1. one side, the shortcut, applies one linear map to a tensor x, and otherwise only views, norms, pooling and dropout;
2. the other side, the branch, reaches the same x through at least one nonlinearity.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from normscope.tracing.function_kinds import Role


class Dataflow(Protocol):
    """A graph of tensors with integer ids. A tensor has a larger id than the tensors it is computed from."""

    def inputs_of(self, tensor: int) -> Sequence[int]:
        """Return the tensors that this one is computed from; empty if unknown."""

    def role_of(self, tensor: int) -> Role:
        """Return what computes this tensor from its inputs."""


class ProjectionShortcut(NamedTuple):
    """The ids of the shortcut's output, the branch's output and the tensor that both read."""

    shortcut: int
    branch: int
    fork: int


def find_projection_shortcut(flow: Dataflow, a: int, b: int) -> ProjectionShortcut | None:
    """Return the projection shortcut among the two sides of an addition; None if neither side is one."""
    for shortcut, branch in ((a, b), (b, a)):
        for fork in _projected_tensors(flow, shortcut):
            if _is_nonlinear_function_of(flow, branch, fork):
                return ProjectionShortcut(shortcut, branch, fork)
    return None


def _projected_tensors(flow: Dataflow, tensor: int) -> Iterator[int]:
    """Yield the tensors of which this one is a projection, the nearest first."""
    is_projected = False
    while True:
        inputs, role = flow.inputs_of(tensor), flow.role_of(tensor)
        if len(inputs) != 1 or role not in ("linear", "pass") or (role == "linear" and is_projected):
            return
        is_projected = is_projected or role == "linear"
        (tensor,) = inputs
        if is_projected:
            yield tensor


def _is_nonlinear_function_of(flow: Dataflow, tensor: int, fork: int) -> bool:
    seen: set[tuple[int, bool]] = set()
    waiting = [(tensor, False)]
    while waiting:
        at, is_nonlinear = waiting.pop()
        if at == fork and is_nonlinear:
            return True
        if at > fork and (at, is_nonlinear) not in seen:
            seen.add((at, is_nonlinear))
            is_nonlinear = is_nonlinear or flow.role_of(at) == "nonlinear"
            waiting += [(source, is_nonlinear) for source in flow.inputs_of(at)]
    return False
