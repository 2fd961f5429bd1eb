"""In which fields two configs describe different models."""

import dataclasses
from typing import Any

from normscope.models.gpt import GPTConfig

_WITHOUT_EFFECT = {"init", "dropout", "allow_future_leak"}
"""Fields that change the training of a model, not its logits."""
_DERIVED = {
    "head_dim": ("head_dim",),
    "kv_heads": ("kv_heads",),
    "hidden": ("hidden",),
    "attention_scale": ("attention_scale",),
    "rotary_dim": ("rotary_dim",),
    "windows": ("window", "window_pattern"),
    "rotary": ("rotary_base", "rotary_scaling", "rotary_pattern", "local_rotary_base"),
}
"""What several fields determine together, or a default stands for; and these fields."""


def differing_fields(config: GPTConfig, other: GPTConfig) -> list[str]:
    """Return the names of the fields in which the models of two configs differ.

    >>> from normscope.models.presets import llama
    >>> differing_fields(llama(), llama(hidden=2048, head_dim=64, dropout=0.1))
    []
    >>> differing_fields(llama(), llama(window=8))
    ['window']
    """
    found: list[str] = []
    a, b = _effects(config), _effects(other)
    for name in a:
        if a[name] != b[name]:
            fields = _DERIVED.get(name, (name,))
            changed = [field for field in fields if getattr(config, field) != getattr(other, field)]
            found += changed or fields
    return found


def _effects(config: GPTConfig) -> dict[str, Any]:
    """What the logits depend on."""
    derived = {field for fields in _DERIVED.values() for field in fields}
    names = [field.name for field in dataclasses.fields(GPTConfig) if field.name not in {*_WITHOUT_EFFECT, *derived}]
    _, kv_heads, head_dim = config.head_sizes
    frequencies = config.rotary_of_layers()
    return {
        **{name: getattr(config, name) for name in names},
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "hidden": config.hidden_size,
        "attention_scale": head_dim**-0.5 if config.attention_scale is None else config.attention_scale,
        "rotary_dim": (head_dim if config.rotary_dim is None else config.rotary_dim) if any(frequencies) else 0,
        "windows": [config.window_of(i) for i in range(config.depth)],
        "rotary": frequencies,
    }
