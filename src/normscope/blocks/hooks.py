"""Whether anyone waits for a module to be called: then it has to be, and cannot be taken together with another."""

from torch import nn
from torch.nn.modules import module as torch_module


def has_hooks(*modules: nn.Module) -> bool:
    """Whether hooks wait for one of them to be called, or its forward has been replaced."""
    if torch_module._has_any_global_hook():
        return True
    for module in modules:
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        if hooks != ({}, {}, {}, {}) or "forward" in module.__dict__:
            return True
    return False
