"""torch's optimizers without importing torch._dynamo.

torch.optim wraps some methods in a decorator that disables compilation, and the first call of the wrapper imports
torch._dynamo, which takes a second. Calling the wrapped method directly avoids that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method inside the decorator; the method itself if it has none."""
    wrapped: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return wrapped


class LightOptimizer(Optimizer):
    """Base class of optimizers whose construction does not import torch._dynamo."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        unwrapped(Optimizer.add_param_group)(self, param_group)


class AdamW(LightOptimizer, torch.optim.AdamW):
    """torch.optim.AdamW, with identical results.

    >>> import sys
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = AdamW([weight], lr=0.1, fused=True)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> [round(x, 2) for x in weight.tolist()]
    [0.9, 0.9, 0.9]
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return unwrapped(torch.optim.AdamW.step)(self, closure)
