"""Save and restore the RNG state of a device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

_ACCELERATOR_BYTES = {"cuda": 16, "xpu": 16, "mps": 44}
"""Size of the RNG state by device type: seed and offset, and of mps the state of Philox."""


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """RNG state of the CPU ("torch") and of an accelerator, by device type."""
    state = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(*_device_args(device))
    return state


def set_rng_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the RNG state; an accelerator's only if it was saved for this device type."""
    torch.set_rng_state(state["torch"])
    if device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], *_device_args(device))


def rng_name(name: str, rank: int) -> str:
    """The name of a rank's state in a checkpoint: that of rank 0 is the name in a run of one process.

    >>> rng_name("torch", 0), rng_name("torch", 3)
    ('torch', 'torch.3')
    """
    return f"{name}.{rank}" if rank else name


def rng_state_bytes(device_type: str) -> dict[str, int]:
    """The sizes of what `rng_state` returns on a device of this type, which this machine may not have.

    >>> rng_state_bytes("cuda")
    {'torch': 5056, 'cuda': 16}
    """
    accelerator = {name: size for name, size in _ACCELERATOR_BYTES.items() if name == device_type}
    return {"torch": torch.get_rng_state().numel(), **accelerator}


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed torch for the steps from here on, differently on each rank: their rows get different dropout masks."""
    torch.manual_seed(hash((seed, step, rank)) % 2**63)


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the RNG state of the CPU and of a device at the end of the block.

    >>> with preserve_rng(torch.device("cpu")):
    ...     inside = torch.rand(3)
    >>> torch.equal(inside, torch.rand(3))
    True
    """
    saved = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(saved, device)


def _device_args(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # mps has a single device and takes no argument
