"""What lessons need around them: weights that are the same every time, gradients, float32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Made = TypeVar("Made")


def seeded(make: Callable[[], Made], seed: int = 0) -> Made:
    """What `make` makes with this seed; the user's random numbers stay where they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@contextmanager
def default_torch_state() -> Iterator[None]:
    """Gradients on, float32, and random numbers that leave the user's alone; afterwards all is as it was."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
