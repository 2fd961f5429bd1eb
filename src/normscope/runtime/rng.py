"""The random numbers of a device: where they stand, and back to there."""

from collections.abc import Mapping

import torch
from torch import Tensor


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Where the random numbers stand: those of the CPU, as `torch`, and those of an accelerator, by its kind."""
    state = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(*_which(device))
    return state


def set_rng_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Draw again what was drawn after `rng_state`, as far as it was taken of this kind of device."""
    torch.set_rng_state(state["torch"])
    if device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # of those there is one, and it is not asked for
