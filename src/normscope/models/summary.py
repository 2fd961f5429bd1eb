"""A one-line summary of a model config."""

from collections.abc import Mapping
from typing import Any

WIRINGS = {
    "pre": "before each branch",
    "post": "after each branch",
    "sandwich": "before and after each branch",
    "parallel": "before both branches at once",
    "single": "once per block",
}


def describe_model(settings: Mapping[str, Any]) -> str:
    """Summarize the settings of a GPT, as stored in config.json; missing fields are skipped.

    >>> from normscope.models.config_json import config_to_json
    >>> from normscope.models.presets import llama
    >>> describe_model(config_to_json(llama(depth=4, width=128, heads=8, context=256)))
    'GPT of 4 blocks, width 128, 8 heads (2 KV heads), context 256, rms ... [d] before each branch, swiglu, rotary'
    """
    parts = ["GPT"]
    if settings.get("depth") is not None:
        parts[0] += f" of {settings['depth']} block{'s' if settings['depth'] != 1 else ''}"
    if settings.get("width") is not None:
        parts.append(f"width {settings['width']}")
    if settings.get("heads") is not None:
        keys = settings.get("kv_heads")
        shared = f" ({keys} KV heads)" if keys not in (None, settings["heads"]) else ""
        parts.append(f"{settings['heads']} head{'s' if settings['heads'] != 1 else ''}{shared}")
    if settings.get("context") is not None:
        parts.append(f"context {settings['context']}")
    if "norm" in settings:
        parts.append(_describe_norm(settings["norm"], settings.get("wiring")))
    if settings.get("activation"):
        parts.append(str(settings["activation"]))
    if settings.get("positions"):
        parts.append("no positions" if settings["positions"] == "none" else str(settings["positions"]))
    if settings.get("qk_norm"):
        parts.append("QK-norm")
    return ", ".join(parts)


def _describe_norm(norm: Any, wiring: Any) -> str:
    if not isinstance(norm, Mapping) or wiring == "none":
        return "no norms"
    what = f"{norm.get('statistic', 'norm')} {norm.get('scope', '')}".strip()
    return f"{what} {WIRINGS.get(str(wiring), wiring or '')}".strip()
