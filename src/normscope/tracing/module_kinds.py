"""Classify modules by class name and attributes: norms, attention, number of heads."""

import re

from torch import nn

_NORM_NAME = re.compile(r"norm(?!al(?!i[sz])|ous)", re.IGNORECASE)  # but not the normal distribution
_ATTENTION_NAME = re.compile(r"att(entio)?n", re.IGNORECASE)
_HEAD_ATTRIBUTES = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead")


def has_norm_name(class_name: str) -> bool:
    """Tell whether a class name is that of a norm.

    >>> has_norm_name("LlamaRMSNorm"), has_norm_name("NormalHead")
    (True, False)
    """
    return _NORM_NAME.search(class_name) is not None


def is_attention(module: nn.Module) -> bool:
    return _ATTENTION_NAME.search(type(module).__name__) is not None


def head_count(module: nn.Module) -> int | None:
    """Return the number of heads that an attention module declares; None if it declares none."""
    declared = (vars(module).get(name) for name in _HEAD_ATTRIBUTES)
    return next((count for count in declared if isinstance(count, int) and count > 0), None)
