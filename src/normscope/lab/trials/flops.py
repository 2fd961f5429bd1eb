"""How much work a step of training is."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def training_flops(loss: Callable[[], Tensor]) -> int:
    """Multiplications and additions in the matrix products of a forward and a backward pass.

    It leaves gradients and running statistics behind, so give it a model that is not needed any more.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> x = torch.ones(5, 3)
    >>> training_flops(lambda: layer(x).sum())  # forward, and back to the weights: x asks for no gradient
    240
    """
    # Attention in one kernel is not counted on a CPU; written out as products it is.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss().backward()
    return int(counter.get_total_flops())
