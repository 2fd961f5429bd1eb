"""Where a model runs."""

import torch

from normscope.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device of this name; auto is an accelerator if torch finds one, else the CPU."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found if found is not None else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device
