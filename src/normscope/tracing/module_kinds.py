"""Classify modules by class, name and attributes: norms, activations, linear layers, attention."""

import re

from torch import Tensor, nn

from normscope.scope import Scope
from normscope.tracing.function_kinds import BOUNDED_ACTIVATIONS
from normscope.tracing.sharded import original_class

_NORM_NAME = re.compile(r"norm(?!al(?!i[sz])|ous)", re.IGNORECASE)  # but not the normal distribution
_ATTENTION_NAME = re.compile(r"att(entio)?n", re.IGNORECASE)
_ACTIVATION_NAME = re.compile(r"relu|gelu|silu|swish|mish|tanh|sigmoid|elu|softplus|activation", re.IGNORECASE)
_HEAD_ATTRIBUTES = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead")
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RMSNorm, nn.MultiheadAttention)


def describe_class(module: nn.Module) -> str:
    """Return the class name of a module. For `normscope.Norm` add the statistic and the scope.

    >>> describe_class(nn.ReLU())
    'ReLU'
    """
    name, scope = original_class(module).__name__, vars(module).get("scope")
    if name != "Norm" or not isinstance(scope, Scope):
        return name
    is_rms = getattr(vars(module).get("statistic"), "name", None) == "rms"
    return f"{name} rms {scope}" if is_rms else f"{name} {scope}"


def has_norm_name(class_name: str) -> bool:
    """Tell whether a class name is that of a norm.

    >>> has_norm_name("LlamaRMSNorm"), has_norm_name("NormalHead")
    (True, False)
    """
    return _NORM_NAME.search(class_name) is not None


def is_norm(module: nn.Module, name: str = "") -> bool:
    """Tell whether a module is a norm: one of torch's, or a class with "norm" in its name, no children and no matrix.

    Parametrizations of weights, such as spectral norm, are excluded by the full name of the module.
    """
    if ".parametrizations." in f".{name}.":
        return False
    if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.modules.batchnorm._NormBase):
        return True
    is_plain = not any(module.children()) and all(p.dim() <= 1 for p in module.parameters())
    return is_plain and has_norm_name(type(module).__name__)


def activation_name(module: nn.Module) -> str | None:
    """Return the lowercase name of an activation module; None if the module is no activation.

    >>> activation_name(nn.Tanh()), activation_name(nn.Linear(2, 2))
    ('tanh', None)
    """
    if any(True for _ in module.children()) or isinstance(module, nn.MultiheadAttention):
        return None
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin | nn.Softmax2d | nn.GLU):
        return None
    own_class = original_class(module)
    name = own_class.__name__
    if own_class.__module__ == "torch.nn.modules.activation" or (
        _ACTIVATION_NAME.search(name) and all(p.numel() <= 1 or p.dim() == 1 for p in module.parameters())
    ):
        lower = name.lower()
        return next((known for known in sorted(BOUNDED_ACTIVATIONS, key=len, reverse=True) if known in lower), lower)
    return None


def is_attention(module: nn.Module) -> bool:
    return _ATTENTION_NAME.search(type(module).__name__) is not None


def head_count(module: nn.Module) -> int | None:
    """Return the number of heads that an attention module declares; None if it declares none."""
    declared = (vars(module).get(name) for name in _HEAD_ATTRIBUTES)
    return next((count for count in declared if isinstance(count, int) and count > 0), None)


def weight_of(module: nn.Module) -> Tensor | None:
    """Return the weight of a module; None if it has none, or computes it on access (a parametrization)."""
    weight = module._parameters.get("weight", vars(module).get("weight"))
    return weight if isinstance(weight, Tensor) else None


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module multiplies by a weight matrix, and has no children."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or any(True for _ in module.children()):
        return False
    weight = weight_of(module)
    return weight is not None and weight.dim() >= 2


def has_channels_first(module: nn.Module) -> bool | None:
    """Tell whether the channels of a module's output lie along dim 1; None if its class does not tell."""
    if isinstance(module, _CHANNELS_FIRST):
        return True
    return False if isinstance(module, _CHANNELS_LAST) else None
