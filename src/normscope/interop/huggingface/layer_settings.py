"""The settings of single layers in a config.json: sliding windows, and layers without rotary embeddings."""

from collections.abc import Callable, Sequence
from typing import Any

from normscope.errors import WeightsError
from normscope.interop.huggingface.settings import Setting, Settings, value
from normscope.models.gpt import GPTConfig

_LAYER_TYPES = {"sliding_attention": "S", "full_attention": "L"}
_MAX_LAYERS = 1 << 16


def window_everywhere(default: int | None) -> Setting:
    """A sliding window of all layers; null is none."""

    def read(settings: Settings) -> dict[str, Any]:
        return {"window": settings.get("sliding_window", default)}

    return Setting(("sliding_window",), read, lambda config: {"sliding_window": config.window})


def window_by_layer(
    pattern: Callable[[Settings, int], str], *more_names: str, switch: str | None = None, default: int | None = 4096
) -> Setting:
    """A sliding window of the layers that layer_types lists.

    Args:
        pattern: the letters of the layers, for settings without layer_types.
        more_names: the settings that it reads.
        switch: the setting that turns the window on; None if there is none.
        default: the default of sliding_window.
    """

    def read(settings: Settings) -> dict[str, Any]:
        depth = layer_count(settings)
        window = settings.get("sliding_window", default)
        if switch is not None and not value(settings, switch, False):
            window = None
        types = settings.get("layer_types")
        letters = pattern(settings, depth) if types is None else _letters(types, depth)
        if window is None and types is not None and "S" in letters:
            raise WeightsError("layer_types has sliding_attention, but there is no sliding_window")
        if window is None or "S" not in letters:
            return {"window": None}
        return {"window": window, "window_pattern": shortest(letters)}

    def write(config: GPTConfig) -> dict[str, Any]:
        windows = [config.window_of(i) for i in range(config.depth)]
        written: dict[str, Any] = {"sliding_window": config.window} if any(windows) or switch is not None else {}
        if switch is not None:
            written[switch] = any(windows)
        if "max_window_layers" in more_names:  # what earlier versions read
            written["max_window_layers"] = next((i for i, window in enumerate(windows) if window), config.depth)
        types = ["full_attention" if window is None else "sliding_attention" for window in windows]
        return {**written, "layer_types": types}

    return Setting(("sliding_window", "layer_types", *more_names, *(() if switch is None else (switch,))), read, write)


def layer_count(settings: Settings) -> int:
    """The number of layers, if it is one that can be listed."""
    depth = value(settings, "num_hidden_layers")
    return depth if isinstance(depth, int) and 0 < depth <= _MAX_LAYERS else 1  # the config refuses it


def shortest(letters: str) -> str:
    """The shortest pattern that repeats to these letters.

    >>> shortest("SSLSSLS"), shortest("LLSS")
    ('SSL', 'LLSS')
    """
    for period in range(1, len(letters) + 1):
        if (letters[:period] * len(letters))[: len(letters)] == letters:
            return letters[:period]
    return letters


def _letters(types: Any, depth: int) -> str:
    if not isinstance(types, Sequence) or len(types) != depth:
        raise WeightsError(f"layer_types must have one type for each of {depth} layers, but got {types!r:.80}")
    for kind in types:
        if not isinstance(kind, str) or kind not in _LAYER_TYPES:
            raise WeightsError(f"unsupported setting layer_types={kind!r:.80}: expected {' or '.join(_LAYER_TYPES)}")
    return "".join(_LAYER_TYPES[kind] for kind in types)
