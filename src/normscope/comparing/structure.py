"""Compare two configs: the settings that differ, in words."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.interop.config_differences import differing_fields
from normscope.models.gpt import GPTConfig

WORDS = {
    "vocab_size": "vocabulary size",
    "context": "context length",
    "width": "embedding width",
    "depth": "number of blocks",
    "heads": "attention heads",
    "kv_heads": "key/value heads",
    "head_dim": "head dimension",
    "hidden": "MLP hidden size",
    "positions": "position embedding",
    "rotary_base": "base of the rotary embedding",
    "tied_head": "output head tied to the embedding",
    "embedding_norm": "norm after the embedding",
    "logit_cap": "soft cap of the logits",
    "window": "sliding window",
    "window_pattern": "blocks with the sliding window",
    "attention_scale": "scale of the attention",
    "attention_cap": "soft cap of the attention",
    "rotary_dim": "rotated features of a head",
    "rotary_scaling": "scaling of the rotary frequencies",
    "rotary_pattern": "rotary embeddings of the blocks",
    "local_rotary_base": "base of the rotary embedding of blocks with a window",
    "embedding_scale": "scale of the embedding",
    "wiring": "residual wiring",
    "norm": "norm",
    "qk_norm": "norm of queries and keys",
    "bias": "biases of linear layers",
}
"""What a setting is called; others keep the name of their field."""


@dataclass(frozen=True)
class SettingDiff:
    """A setting that differs."""

    field: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{WORDS.get(self.field.partition('.')[0], self.field)} ({self.field}): {self.a} and {self.b}"


def compare_configs(a: GPTConfig, b: GPTConfig) -> tuple[SettingDiff, ...]:
    """The settings that differ, with defaults filled in.

    >>> from normscope.models.presets import llama
    >>> [str(one) for one in compare_configs(llama(), llama(heads=6, kv_heads=2, head_dim=64, norm="layer"))]
    ['attention heads (heads): 12 and 6', 'norm (norm.statistic): rms and standardize', 'norm (norm.bias): False and \
True', 'key/value heads (kv_heads): 4 and 2']
    """
    ours, theirs = _settings(a), _settings(b)
    found: list[SettingDiff] = []
    for name in differing_fields(a, b):
        if isinstance(ours[name], NormSpec) and isinstance(theirs[name], NormSpec):
            found += _norm_diffs(name, ours[name], theirs[name])
        elif ours[name] != theirs[name]:
            found.append(SettingDiff(name, _shown(ours[name]), _shown(theirs[name])))
    return tuple(found)


def _settings(config: GPTConfig) -> dict[str, Any]:
    """The settings by field, with defaults filled in."""
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    settings |= dict(zip(("heads", "kv_heads", "head_dim"), config.head_sizes, strict=True))
    return {**settings, "hidden": config.hidden_size}


def _norm_diffs(name: str, a: NormSpec, b: NormSpec) -> Iterator[SettingDiff]:
    for field in fields(NormSpec):
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        has_no_bias = field.name == "bias" and a.affine is None and b.affine is None
        if ours != theirs and field.name not in ("momentum", "warmup", "sync") and not has_no_bias:
            yield SettingDiff(f"{name}.{field.name}", ours, theirs)


def _shown(value: Any) -> Any:
    return f"{value.statistic} over {value.scope!r}" if isinstance(value, NormSpec) else value
