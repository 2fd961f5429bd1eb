"""Leave a model, and the random numbers, as they were, whatever happens in between."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def preserve_module_state(model: nn.Module) -> Iterator[None]:
    """Put back what a pass may change: attributes of modules, lists and dictionaries among them, and random numbers.

    Parameters and buffers are put back too, but not the numbers in them: give the pass copies of those. Of tensors that
    are neither, see `preserve_plain_tensors`.
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


@contextmanager
def preserve_plain_tensors(model: nn.Module) -> Iterator[None]:
    """Put back the numbers in tensors that are plain attributes of modules, or in their lists and dictionaries.

    Those of one number are written to even by a pass without numbers: torch keeps these real.
    """
    kept = [(tensor, tensor.detach().clone()) for module in model.modules() for tensor in _plain_tensors(module)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, numbers in kept:
                if tensor.shape == numbers.shape and not torch.equal(tensor, numbers):
                    tensor.copy_(numbers)


def _plain_tensors(module: nn.Module) -> list[Tensor]:
    own = [value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")]
    values = [*own, *(item for value in own if isinstance(value, list | tuple | set) for item in value)]
    values += [item for value in own if isinstance(value, dict) for item in value.values()]
    return [value for value in values if isinstance(value, Tensor) and not value.is_meta]
