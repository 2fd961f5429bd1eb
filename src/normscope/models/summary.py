"""A one-line summary of a model config."""

from collections.abc import Mapping
from typing import Any

WIRINGS = {
    "pre": "before each branch",
    "post": "after each branch",
    "sandwich": "before and after each branch",
    "parallel": "before both branches at once",
    "parallel-2": "before each of two parallel branches",
    "branch": "on the output of each branch",
    "single": "once per block",
}

_PARTS = ("smear", "embedding_mix", "value_embeddings", "backout")


def describe_model(settings: Mapping[str, Any]) -> str:
    """Summarize the settings of a GPT, as stored in config.json; missing fields are skipped.

    >>> from normscope.models.config_json import config_to_json
    >>> from normscope.models.presets import llama
    >>> describe_model(config_to_json(llama(depth=4, width=128, heads=8, context=256)))
    'GPT of 4 blocks, width 128, 8 heads (2 KV heads), context 256, rms ... [d] before each branch, swiglu, rotary'
    """
    depth, width, heads, context = (settings.get(name) for name in ("depth", "width", "heads", "context"))
    kv_heads, positions = settings.get("kv_heads"), settings.get("positions")
    blocks = "" if depth is None else f" of {depth} block{'s' if depth != 1 else ''}"
    shared = "" if kv_heads in (None, heads) else f" ({kv_heads} KV heads)"
    parts = [
        f"GPT{blocks}",
        None if width is None else f"width {width}",
        None if heads is None else f"{heads} head{'s' if heads != 1 else ''}{shared}",
        None if context is None else f"context {context}",
        _describe_norm(settings["norm"], settings.get("wiring")) if "norm" in settings else None,
        settings.get("activation"),
        "no positions" if positions == "none" else positions,
        "QK-norm" if settings.get("qk_norm") else None,
        *(name.replace("_", " ") for name in _PARTS if settings.get(name)),
    ]
    return ", ".join(str(part) for part in parts if part)


def _describe_norm(norm: Any, wiring: Any) -> str:
    if not isinstance(norm, Mapping) or wiring == "none":
        return "no norms"
    what = f"{norm.get('statistic', 'norm')} {norm.get('scope', '')}".strip()
    return f"{what} {WIRINGS.get(str(wiring), wiring or '')}".strip()
