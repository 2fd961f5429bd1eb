"""torch's optimisers without the weight of its compiler.

torch.optim marks some methods as not to be compiled, and the mark loads torch._dynamo at the first call: a second,
of the eight of a short run. What is marked is the method inside, which works as well without.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def unmarked(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method inside the mark; the method itself in a torch that does not mark it."""
    inner: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return inner


class Light(Optimizer):
    """An optimiser whose making does not load the compiler."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        unmarked(Optimizer.add_param_group)(self, param_group)


class AdamW(Light, torch.optim.AdamW):
    """torch.optim.AdamW, the same in all but that.

    >>> import sys
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimiser = AdamW([weight], lr=0.1, fused=True)
    >>> weight.sum().backward()
    >>> optimiser.step()
    >>> [round(x, 2) for x in weight.tolist()]
    [0.9, 0.9, 0.9]
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return unmarked(torch.optim.AdamW.step)(self, closure)
