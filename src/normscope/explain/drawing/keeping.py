"""Leave a model, and the random numbers, as they were, whatever happens in between."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back what a pass may change: attributes of modules, lists and dictionaries among them, and random numbers.

    Parameters and buffers are put back too, but not the numbers in them: give the pass copies of those.
    """
    kept = [(module, dict(vars(module)), _contents(module)) for module in model.modules()]
    cuda = sorted({tensor.device.index for tensor in model.state_dict().values() if tensor.is_cuda})
    of_python = random.getstate()
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(of_python)
        for module, attributes, contents in kept:
            vars(module).clear()
            vars(module).update(attributes)
            for holder, values in contents:
                holder.clear()
                if isinstance(holder, list):
                    holder.extend(values)
                else:
                    holder.update(values)


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    """The lists, sets and dictionaries of a module, torch's own among them (buffers, hooks), and what they hold."""
    holders = [value for value in vars(module).values() if isinstance(value, list | dict | set)]
    return [(holder, holder.copy()) for holder in holders]
