"""What differs between two x-rays, as values: of each module, where it begins, and of the whole."""

import math
from dataclasses import dataclass

from normscope.diagnostics.diff.distance import COARSEST, EPS


@dataclass(frozen=True)
class ModuleDifference:
    """How one module, or a function inside of one, differs between the two.

    Each distance is a share of the size of what is compared: 0 for what is alike, infinite for what has another shape
    or other places that are not finite; None if there is nothing to compare.

    Args:
        name, kind: the module's.
        order: when it ran, in the first one if it is there; None if it never did.
        only_in: 0 or 1 if only the first or the second has it; else None.
        repeated: whether a batch calls it several times.
        entering, output, gradient: the distances of what it was given, of what it gave, and of the gradient there.
        weights, weight_gradients: the largest of its own parameters' distances.
        other_weights: whether its own parameters, of the same type, are not the same to the bit.
        other_sizes: whether what is infinitely far apart has another number of numbers; else some are not finite.
        ran_only_in: 0 or 1 if both have it, and it ran, or was seen, in the first or the second alone; else None.
        same_input: whether it is known that it was given the very same numbers, if those that gave them are alike.
        remarks: what else is not the same: shapes, types, calls, mode.
    """

    name: str
    kind: str
    order: int | None
    only_in: int | None = None
    repeated: bool = False
    input: float | None = None
    output: float | None = None
    gradient: float | None = None
    weights: float | None = None
    weight_gradients: float | None = None
    other_weights: bool = False
    other_sizes: bool = False
    ran_only_in: int | None = None
    same_input: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beginning:
    """Where a difference begins: the module, how large it is there, and what is known of the reason."""

    module: str
    distance: float
    why: str


@dataclass(frozen=True)
class Difference:
    """Two x-rays, compared.

    Args:
        labels: what the two are.
        tolerance: the largest distance that is taken for rounding.
        dtype: the coarsest type that was seen in the two.
        modules: all of them, in the order in which they ran.
        forward, backward: where a difference begins on the way forward, and on the way back; None if nowhere.
        remarks: what is not the same of the whole: the number of batches, the losses.
    """

    labels: tuple[str, str]
    tolerance: float
    dtype: str
    modules: tuple[ModuleDifference, ...]
    forward: Beginning | None
    backward: Beginning | None
    remarks: tuple[str, ...] = ()

    def exceeds(self, *distances: float | None) -> bool:
        """Whether one of the distances is more than rounding."""
        return any(distance is not None and distance > self.tolerance for distance in distances)

    @property
    def half_the_digits(self) -> bool:
        """Whether the tolerance is the one that follows from the type."""
        return self.tolerance == math.sqrt(EPS.get(self.dtype, COARSEST))

    @property
    def diverges(self) -> bool:
        """Whether anything was computed differently; modules that only one of them has do not count."""
        return self.forward is not None or self.backward is not None
