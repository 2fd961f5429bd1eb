"""Which modules and functions are what: activations and their flat ends, attention, mere views."""

import re
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.scope import Scope

BOUNDED_ACTIVATIONS = {
    "sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hardtanh": (-1.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softsign": (-1.0, 1.0),
}
"""The least and the greatest values of bounded functions."""

ACTIVATIONS = {
    "relu", "relu6", "leaky_relu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardswish",
    "prelu", "threshold", *BOUNDED_ACTIVATIONS,
}  # fmt: skip

ADDITIONS = {"add", "__radd__", "__add__"}
VIEWS = {
    "view", "reshape", "flatten", "unflatten", "transpose", "permute", "movedim", "swapaxes", "t", "unsqueeze",
    "squeeze", "contiguous", "to", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "detach",
    "view_as", "requires_grad_",
}  # fmt: skip
"""They keep every number, or round it to another type."""

OPENED = {F.multi_head_attention_forward}
"""Functions of torch that call others: looked into."""

_LIKE_ACTIVATION = re.compile(r"relu|gelu|silu|swish|mish|tanh|sigmoid|elu|softplus|activation", re.IGNORECASE)
_HEADS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead")
_LIKE_ATTENTION = re.compile(r"att(entio)?n", re.IGNORECASE)
_CHANNELS_SECOND = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)


def function_name(function: Callable[..., Any]) -> str:
    """`relu` for F.relu, torch.relu, Tensor.relu and Tensor.relu_."""
    name = getattr(function, "__name__", "")
    return name if name.startswith("__") else name.rstrip("_")


def kind_of(module: nn.Module) -> str:
    """What a module is called: its class, and of normscope's one norm the statistic and the scope, which tell which.

    >>> kind_of(nn.ReLU())
    'ReLU'
    """
    name, scope = type(module).__name__, vars(module).get("scope")
    if name != "Norm" or not isinstance(scope, Scope):
        return name
    return f"{name} rms {scope}" if str(vars(module).get("statistic")) == "rms" else f"{name} {scope}"


def activation_of(module: nn.Module) -> str | None:
    """The name of the activation that a module is; None if it is none."""
    if any(True for _ in module.children()) or isinstance(module, nn.MultiheadAttention):
        return None
    name = type(module).__name__
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin | nn.Softmax2d | nn.GLU):
        return None
    if type(module).__module__ == "torch.nn.modules.activation" or (
        _LIKE_ACTIVATION.search(name) and all(p.numel() <= 1 or p.dim() == 1 for p in module.parameters())
    ):
        plain = name.lower()
        return next((known for known in sorted(BOUNDED_ACTIVATIONS, key=len, reverse=True) if known in plain), plain)
    return None


def is_attention(module: nn.Module | None) -> bool:
    return module is not None and _LIKE_ATTENTION.search(type(module).__name__) is not None


def heads_of(module: nn.Module) -> int:
    """How many heads an attention says that it has; one if it does not say."""
    found = (vars(module).get(name) for name in _HEADS)
    return next((count for count in found if isinstance(count, int) and count > 0), 1)


def weight_of(module: nn.Module) -> Tensor | None:
    """Its weight, if it has one at hand. One that is made whenever it is asked for is not: asking would be a step."""
    weight = module._parameters.get("weight", vars(module).get("weight"))
    return weight if isinstance(weight, Tensor) else None


def is_linear(module: nn.Module) -> bool:
    """Whether it multiplies by a matrix, and has no other module inside."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or any(True for _ in module.children()):
        return False
    weight = weight_of(module)
    return weight is not None and weight.dim() >= 2


def has_channels_second(module: nn.Module) -> bool | None:
    """Whether what it gives has its channels along axis 1; None if it does not say."""
    if isinstance(module, _CHANNELS_SECOND):
        return True
    if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding | nn.RMSNorm | nn.MultiheadAttention):
        return False
    return None
