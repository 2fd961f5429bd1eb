"""Restore a model and the random number generators after a forward pass."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def preserve_module_state(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules, including lists and dicts, and the RNG states of Python and torch.

    The values of parameters and buffers are not restored: run the pass on copies. For other tensors, see
    `preserve_plain_tensors`.
    """
    saved = [(module, dict(vars(module)), _containers(module)) for module in model.modules()]
    cuda = sorted({tensor.device.index for tensor in model.state_dict().values() if tensor.is_cuda})
    python_rng = random.getstate()
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python_rng)
        for module, attributes, containers in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for container, items in containers:
                container.clear()
                if isinstance(container, list):
                    container.extend(items)
                else:
                    container.update(items)


def _containers(module: nn.Module) -> list[tuple[Any, Any]]:
    """Return the lists, sets and dicts of a module, including torch's own (buffers, hooks), each with a copy."""
    containers = [value for value in vars(module).values() if isinstance(value, list | dict | set)]
    return [(container, container.copy()) for container in containers]


@contextmanager
def preserve_plain_tensors(model: nn.Module) -> Iterator[None]:
    """Restore the values of tensors that are plain attributes of modules, or items of their lists and dicts.

    Even a pass with fake tensors writes to those with one element: torch keeps them real.
    """
    saved = [(tensor, tensor.detach().clone()) for module in model.modules() for tensor in _plain_tensors(module)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in saved:
                if tensor.shape == values.shape and not torch.equal(tensor, values):
                    tensor.copy_(values)


def _plain_tensors(module: nn.Module) -> list[Tensor]:
    own = [value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")]
    values = [*own, *(item for value in own if isinstance(value, list | tuple | set) for item in value)]
    values += [item for value in own if isinstance(value, dict) for item in value.values()]
    return [value for value in values if isinstance(value, Tensor) and not value.is_meta]
