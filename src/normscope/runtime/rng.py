"""Save and restore the RNG state of a device."""

from collections.abc import Mapping

import torch
from torch import Tensor


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


def _device_args(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # mps has a single device and takes no argument
