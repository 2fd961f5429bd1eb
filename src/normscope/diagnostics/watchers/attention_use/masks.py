"""What a mask hides: earlier tokens, or padding."""

import torch
from torch import Tensor

from normscope.diagnostics.collect.tensors import is_readable
from normscope.diagnostics.watchers.attention_use.scores import MAX_MASK


def is_reversed(visible: Tensor) -> bool:
    """Whether queries see all later keys and no earlier ones."""
    if visible.shape[-1] != visible.shape[-2] or visible.shape[-1] < 3:
        return False
    pattern = visible.flatten(0, -3)[0]
    later = torch.ones_like(pattern).triu(1)
    earlier = later.T
    inner = later.clone()
    inner[0] = False  # a row of which everything is masked may have any value
    return (
        not bool((pattern & earlier)[1:-1].any())
        and bool(pattern[later][:1].all())
        and bool((pattern | ~later)[:-1].all())
    )


def padding_of(x: Tensor) -> Tensor | None:
    """Where sequences (b, t) of integers end in repeats of one value, the same in all, with unequal lengths."""
    if x.is_floating_point() or x.dtype == torch.bool or x.dim() != 2 or x.shape[1] < 3 or len(x) < 2:
        return None
    if x.numel() > MAX_MASK or not is_readable(x):
        return None
    ends = x[:, -1]
    value = ends.mode().values
    same = x == value
    run = same.flip(1).long().cumprod(1).flip(1).bool()
    lengths = run.sum(1)
    is_padding = float((lengths >= 2).float().mean()) >= 0.5 and bool((lengths != lengths[0]).any())
    inside = same & ~run
    return run if is_padding and not bool(inside.any()) else None
