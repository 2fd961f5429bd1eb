"""What a tensor was computed from."""

from dataclasses import dataclass


@dataclass(slots=True)
class Flow:
    """What a tensor was computed from, as sets of parameters and of cuts, each a number with one bit per element.

    Args:
        values: parameters whose values are in it.
        live: those of them that autograd can reach from it.
        cuts: places where others were lost.
        has_grad: whether it required a gradient then.
    """

    values: int
    live: int
    cuts: int
    has_grad: bool


NOTHING = Flow(0, 0, 0, False)
