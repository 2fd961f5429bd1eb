"""FLOPs of a training step."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def training_flops(loss: Callable[[], Tensor]) -> int:
    """Count the FLOPs of the matrix products of a forward and a backward pass.

    It changes gradients and running statistics, so pass a model that is not used afterwards.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> x = torch.ones(5, 3)
    >>> training_flops(lambda: layer(x).sum())  # forward, and backward to the weights: x needs no gradient
    240
    """
    # Fused attention is not counted on a CPU; matrix products are.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss().backward()
    return int(counter.get_total_flops())
