"""What the user said about the training loop, as a record holds it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HintStats:
    """The hints that an x-ray was given, and whether they came true.

    Args:
        optimizers: class names of the optimizers.
        optimizers_without_step: class names of those that did not step.
        loss: the name of the loss module or function; "" if unknown.
        batches_per_epoch: the length of the loader; None if unknown.
    """

    optimizers: tuple[str, ...] = ()
    optimizers_without_step: tuple[str, ...] = ()
    loss: str = ""
    batches_per_epoch: int | None = None
