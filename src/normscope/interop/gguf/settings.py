"""Settings of GGUF files that several keys of the metadata tell together, in both directions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from normscope.checks import short_repr
from normscope.errors import WeightsError
from normscope.models.gpt import GPTConfig

Metadata = Mapping[str, Any]
"""The metadata of an architecture, without its name before each key."""

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


class Extra(NamedTuple):
    """Keys of the metadata, and the settings that they tell.

    Args:
        keys: the keys.
        read: the settings of config.json for the metadata.
        write: the metadata for a config.
    """

    keys: tuple[str, ...]
    read: Callable[[Metadata], dict[str, Any]]
    write: Callable[[GPTConfig], dict[str, Any]]


def head_dim(metadata: Metadata) -> int:
    """The size of a head."""
    found: int = metadata.get("attention.key_length") or (
        metadata["embedding_length"] // metadata["attention.head_count"]
    )
    return found


def rotated_part(name: str) -> Extra:
    """The setting for the rotated fraction of a head, which is read as int(head_dim * fraction)."""

    def read(metadata: Metadata) -> dict[str, Any]:
        size = head_dim(metadata)
        rotated = metadata.get("rope.dimension_count", size)
        return {name: 1.0 if rotated == size else (rotated + 0.5) / size}

    def write(config: GPTConfig) -> dict[str, Any]:
        return {"rope.dimension_count": config.head_sizes[2] if config.rotary_dim is None else config.rotary_dim}

    return Extra(("rope.dimension_count",), read, write)


UNUSED_WINDOW = Extra((_WINDOW,), lambda metadata: {"sliding_window": metadata.get(_WINDOW) or None}, lambda config: {})
"""Phi-3's window, which llama.cpp ignores: a model with one is not written."""

PARALLEL_BRANCHES = Extra(
    ("use_parallel_residual",),
    lambda metadata: {"use_parallel_residual": bool(metadata.get("use_parallel_residual", True))},
    lambda config: {"use_parallel_residual": config.wiring == "parallel-2"},
)


def gemma_layers(period: int, largest: int) -> Extra:
    """The windows of Gemma, and the scale of its attention.

    Args:
        period: every how many layers one has no window.
        largest: number of layers of the largest model, whose scale of the attention is another one.
    """
    default_window = 4096 if period == 2 else None

    def read(metadata: Metadata) -> dict[str, Any]:
        depth, heads = metadata["block_count"], metadata["attention.head_count"]
        pattern = metadata.get(_PATTERN, period)
        if not isinstance(pattern, list):
            pattern = _periodic(pattern, depth)
        size = metadata["embedding_length"] // heads if depth == largest else head_dim(metadata)
        window = metadata.get(_WINDOW, default_window) or None  # 0 is none
        return {
            "query_pre_attn_scalar": size,
            "layer_types": _layer_types(pattern) if window else ["full_attention"] * depth,
            "sliding_window": window,
        }

    def write(config: GPTConfig) -> dict[str, Any]:
        windowed = _windowed(config)
        if not any(windowed):  # where llama.cpp has a window of its own, one that hides nothing
            return {_WINDOW: None if default_window is None else config.context}
        # llama.cpp reads the period only, and earlier versions have a fixed one.
        periods = [one for one in (period, *range(config.depth + 1)) if _periodic(one, config.depth) == windowed]
        return {_WINDOW: config.window, _PATTERN: None if not periods or periods[0] == period else periods[0]}

    return Extra((_WINDOW, _PATTERN), read, write)


def _read_layers(metadata: Metadata) -> dict[str, Any]:
    depth = metadata["block_count"]
    rotated = metadata.get("attention.rope_pattern", [True] * depth)
    if metadata["logit_scale"] != 1:
        raise WeightsError(f"unsupported metadata logit_scale={short_repr(metadata['logit_scale'])}: expected 1")
    if not isinstance(rotated, list) or not isinstance(metadata[_PATTERN], list):
        raise WeightsError(f"unsupported metadata {_PATTERN}={short_repr(metadata[_PATTERN])}: expected a list")
    return {
        "use_sliding_window": any(metadata[_PATTERN]),
        "sliding_window": metadata[_WINDOW],
        "layer_types": _layer_types(metadata[_PATTERN]),
        "no_rope_layers": [int(bool(has_rotary)) for has_rotary in rotated],
    }


def _write_layers(config: GPTConfig) -> dict[str, Any]:
    windowed, rotated = _windowed(config), [one is not None for one in config.rotary_of_layers()]
    return {
        # llama.cpp crashes without any window; one of the whole context hides nothing.
        _WINDOW: config.window if any(windowed) else config.context,
        _PATTERN: windowed if any(windowed) else [True] * config.depth,
        "attention.rope_pattern": None if all(rotated) else rotated,
        "logit_scale": 1.0,
    }


LISTED_LAYERS = Extra((_WINDOW, _PATTERN, "attention.rope_pattern", "logit_scale"), _read_layers, _write_layers)
"""Lists of the layers with a window, and of those with rotary embeddings."""


def _windowed(config: GPTConfig) -> list[bool]:
    return [config.window_of(i) is not None for i in range(config.depth)]


def _periodic(period: int, depth: int) -> list[bool]:
    """Windows in all layers but the last of each period; in all for 0."""
    return [period == 0 or (i + 1) % period != 0 for i in range(depth)]


def _layer_types(windowed: list[Any]) -> list[str]:
    return ["sliding_attention" if one else "full_attention" for one in windowed]
