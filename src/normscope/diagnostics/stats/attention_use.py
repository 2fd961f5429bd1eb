"""How the scores of an attention are made, masked, and turned into weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionUse:
    """The scores of one attention in its first calls.

    Args:
        module: the innermost module that computes it.
        head_dim: features of a query; 0 if unknown.
        scale: factor of the products of queries and keys; None if unknown.
        score_std: standard deviation of the scores of visible keys.
        masked_weight: weight that queries give to masked keys, on average; None without a known mask.
        mask: how scores were masked: "fill", "added", "multiplied"; "" if not.
        fill: the value that masked scores got, or were increased by.
        is_reversed: whether queries see later keys, but no earlier ones.
        visible_keys: the largest number of keys that a query sees; None if nothing is masked.
        keys: the number of keys.
        sees_padding_only: whether the mask of keys shows the padding at the ends of sequences, and hides the rest.
        softmax_axis, contracted_axis: the axis of softmax, and the axis that the product with the values sums over,
            counted from the end, as -1; None if unknown.
        source: the line that made the softmax or called the attention.
    """

    module: str
    head_dim: int = 0
    scale: float | None = None
    score_std: float = 0.0
    masked_weight: float | None = None
    mask: str = ""
    fill: float = 0.0
    is_reversed: bool = False
    visible_keys: int | None = None
    keys: int = 0
    sees_padding_only: bool = False
    softmax_axis: int | None = None
    contracted_axis: int | None = None
    source: str = ""


@dataclass(frozen=True)
class MixedAxes:
    """A view or reshape that should have been a transpose.

    Args:
        module: the innermost module that called it.
        function: `view` or `reshape`.
        before, after: the shapes.
        source: the line.
    """

    module: str
    function: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    source: str = ""
