"""Detection of hooks: a module with hooks must be called and cannot be fused with another."""

from torch import nn
from torch.nn.modules import module as torch_module


def has_hooks(*modules: nn.Module) -> bool:
    """Return whether any of the modules has hooks or a replaced forward method."""
    if torch_module._has_any_global_hook():
        return True
    for module in modules:
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        if hooks != ({}, {}, {}, {}) or "forward" in module.__dict__:
            return True
    return False
