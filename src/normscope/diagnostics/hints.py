"""What the user says about the training loop: optional, and only ever additional knowledge."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any

from torch.optim.optimizer import Optimizer

from normscope.checks import short_repr
from normscope.errors import ConfigError


@dataclass(frozen=True)
class Hints:
    """The optimizers, the loss and the data of a training loop, as far as the user named them.

    Args:
        optimizers: those that should train the model; () if unknown.
        loss: a loss module or function; None if unknown.
        loader: what yields the batches of an epoch; None if unknown.
    """

    optimizers: tuple[Optimizer, ...] = ()
    loss: Callable[..., Any] | None = None
    loader: Iterable[Any] | None = None

    @property
    def loss_name(self) -> str:
        """`CrossEntropyLoss` or `cross_entropy`; "" if unknown."""
        return "" if self.loss is None else getattr(self.loss, "__name__", type(self.loss).__name__)

    @property
    def batches_per_epoch(self) -> int | None:
        """The length of the loader; None if unknown."""
        try:
            return len(self.loader) if isinstance(self.loader, Sized) else None
        except TypeError:  # a DataLoader of an iterable dataset
            return None


def read_hints(optimizer: object = None, loss: object = None, loader: object = None) -> Hints:
    """Check the hints of `Xray`.

    >>> import torch
    >>> read_hints(loss=torch.nn.functional.mse_loss, loader=[1, 2, 3])  # doctest: +ELLIPSIS
    Hints(optimizers=(), loss=<function mse_loss at ...>, loader=[1, 2, 3])
    >>> read_hints(optimizer=0.1)
    Traceback (most recent call last):
    normscope.errors.ConfigError: optimizer=0.1 is not a torch optimizer
    fix: optimizer=optimizer, or a list of optimizers
    """
    given = () if optimizer is None else optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    optimizers: tuple[Any, ...] = tuple(
        getattr(one, "optimizer", one) for one in given
    )  # that of accelerate is inside a wrapper
    for one in optimizers:
        if not isinstance(one, Optimizer):
            fix = "optimizer=optimizer, or a list of optimizers"
            raise ConfigError(f"optimizer={short_repr(one)} is not a torch optimizer\nfix: {fix}")
    if loss is not None and not callable(loss):
        fix = "loss=criterion, or a function such as torch.nn.functional.cross_entropy"
        raise ConfigError(f"loss={short_repr(loss)} is not a loss module or function\nfix: {fix}")
    if loader is not None and not isinstance(loader, Iterable):
        raise ConfigError(f"loader={short_repr(loader)} cannot be iterated over\nfix: loader=train_loader")
    return Hints(optimizers, loss, loader)
