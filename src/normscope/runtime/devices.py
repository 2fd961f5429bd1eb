"""Where a model runs."""

import torch

from normscope.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device of this name; auto is an accelerator if torch finds one, else the CPU."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found if found is not None else torch.device("cpu")
    if not isinstance(name, str | torch.device):
        raise ConfigError(f"device={name!r:.80} must be a name, for instance 'cpu'")
    check_device(name)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device that computes nothing, as meta does, fails here
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["it does not work"])[0]
        raise ConfigError(f"device={name!r} cannot be used here: {reason}\nfix: cpu, or auto") from None
    return device


def check_device(device: torch.device | str | None) -> None:
    """Refuse what is not a device that this torch has."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["torch does not have it"])[0]
        raise ConfigError(f"device={device!r:.80} cannot be used here: {reason:.200}\nfix: device='cpu'") from None
