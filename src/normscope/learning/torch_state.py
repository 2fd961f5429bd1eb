"""Torch's global state for lessons: seeds, gradients, default dtype."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


def seeded(make: Callable[[], T], seed: int = 0) -> T:
    """Call `make` with this random seed, without changing torch's rng state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@contextmanager
def default_torch_state() -> Iterator[None]:
    """Enable gradients, set the default dtype to float32 and fork the rng; restore all of it afterwards."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
