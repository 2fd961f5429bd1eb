"""Resolve device names, and check that torch.compile can run."""

import os
import shutil

import torch

from normscope.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device with this name; "auto" is an accelerator if torch finds one, otherwise the CPU."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found if found is not None else torch.device("cpu")
    if not isinstance(name, str | torch.device):
        raise ConfigError(f"device={name!r:.80} must be a device name such as 'cpu'")
    check_device(name)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on devices that cannot compute, such as meta
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["it does not work"])[0]
        raise ConfigError(f"device={name!r} cannot be used here: {reason}\nfix: cpu, or auto") from None
    return device


def check_device(device: torch.device | str | None) -> None:
    """Raise if torch does not have this device."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["torch does not have it"])[0]
        raise ConfigError(f"device={device!r:.80} cannot be used here: {reason:.200}\nfix: device='cpu'") from None


def cpp_compiler() -> str | None:
    """Name of an installed C++ compiler; None if there is none."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++", "cl")
    return next((name for name in names if name and shutil.which(name)), None)


def check_compile(wanted: bool, device: torch.device) -> None:
    """Raise if torch.compile is wanted on a CPU, but the C++ compiler it needs is not installed."""
    if wanted and device.type == "cpu" and cpp_compiler() is None:
        raise ConfigError("torch.compile needs a C++ compiler, but none was found\nfix: install one, or omit --compile")
