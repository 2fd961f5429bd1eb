"""How much work a step of training is."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def training_flops(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Multiplications and additions in the matrix products of a forward and a backward pass; the model stays as it is.

    >>> import torch
    >>> layer = nn.Linear(3, 4, bias=False)
    >>> x = torch.ones(5, 3)
    >>> training_flops(layer, lambda: layer(x).sum())  # forward, and back to the weights: x asks for no gradient
    240
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with FlopCounterMode(display=False) as counter:
        loss().backward()
    for weight in model.parameters():
        weight.grad = None
    for buffer, before in buffers:  # running statistics have not seen this batch
        buffer.copy_(before)
    return int(counter.get_total_flops())
