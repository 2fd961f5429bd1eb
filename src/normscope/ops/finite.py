"""Whether a tensor has NaN or Inf."""

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite. Takes no memory, unlike `isfinite`, and on a CPU a fraction of its time.

    >>> import math
    >>> is_finite(torch.tensor([1.0, -2.0])), is_finite(torch.tensor([1.0, math.nan, 2.0]))
    (True, False)
    """
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).isfinite().all())  # NaN is min and max
