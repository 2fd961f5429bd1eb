"""Preset configs: the GPTs of nanoGPT, nanochat and Llama. Override any field: `gpt2(depth=4, width=128)`."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from normscope.blocks.checks import lookup
from normscope.blocks.norm.norm_spec import NormSpec, as_norm
from normscope.checks import check_positive_int, check_setting_names
from normscope.models.gpt import GPTConfig
from normscope.models.size import MAX_BLOCKS


def gpt2(**overrides: Any) -> GPTConfig:
    """Return nanoGPT's GPT-2: learned positions, LayerNorm, GELU, biases, tied head.

    `bias=False` removes every bias, including those of norms, unless the norm is given as a `NormSpec`.

    >>> gpt2().width, gpt2(bias=False).norm.bias, gpt2(bias=False, qk_norm="layer").qk_norm.bias
    (768, False, False)
    """
    norms: dict[str, Any] = {name: overrides[name] for name in ("norm", "qk_norm") if name in overrides}
    if overrides.get("bias") is False:
        norms = {name: _without_bias(norm) for name, norm in {"norm": "layer", **norms}.items()}
    return _preset(
        {**overrides, **norms},
        vocab_size=50304,  # 50257, rounded up to a multiple of 64 as nanoGPT does
        context=1024,
        width=768,
        depth=12,
        heads=12,
        positions="learned",
        norm="layer",
        activation="gelu",
        bias=True,
        tied_head=True,
        init="gpt2",
    )


def nanochat(**overrides: Any) -> GPTConfig:
    """Return nanochat's GPT: rotary, QK-norm, parameter-free RMSNorm (also after the embedding), ReLU^2, logit cap.

    It reproduces nanochat at commit 16788ee (2025-11-23), whose code rotates queries and keys by the negative angle:
    its weights give the same logits after the sign of its sine table is flipped.

    >>> nanochat().activation, nanochat().norm.affine
    ('relu2', None)
    """
    return _preset(
        overrides,
        vocab_size=65536,
        context=2048,
        width=768,
        depth=12,
        heads=6,
        positions="rotary",
        norm="rms-plain",
        qk_norm="rms-plain",
        embedding_norm=True,
        activation="relu2",
        logit_cap=15.0,
        init="nanochat",
    )


def nanochat_2026_07(**overrides: Any) -> GPTConfig:
    """Return nanochat's later GPT: `nanochat`, whose blocks also read the embedding again, in several ways.

    It reproduces nanochat at commit 92d63d4 (2026-07-03): value embeddings, a learned mix of stream and embedding
    before each block, smear, backout, sharper attention, and a short window in three of four blocks. The last block
    always sees everything. As in `nanochat`, queries and keys are rotated by the opposite angle.

    >>> config = nanochat_2026_07()
    >>> config.rotary_base, config.smear, list(config.value_layers)
    (100000.0, True, [1, 3, 5, 7, 9, 11])
    """
    sizes = {"width": 768, "depth": 12, "heads": 6, "context": 2048, **overrides}
    check_positive_int(**{name: sizes[name] for name in ("width", "depth", "heads", "context")})
    has_windows = overrides.get("window", True) is not None
    windows = nanochat_windows("SSSL", sizes["context"], sizes["depth"]) if has_windows else {}
    head_dim = overrides.get("head_dim") or max(1, sizes["width"] // sizes["heads"])
    return nanochat(
        **{
            "vocab_size": 32768,
            "rotary_base": 100000.0,
            "attention_scale": 1.2**2 / math.sqrt(head_dim),  # nanochat multiplies queries and keys by 1.2
            "smear": True,
            "embedding_mix": True,
            "value_embeddings": True,
            "backout": True,
            "init": "nanochat-2026-07",
            **windows,
            **overrides,
        }
    )


def nanochat_windows(pattern: str, context: int, depth: int) -> dict[str, Any]:
    """Return the window settings for a window_pattern of nanochat.

    A short window reaches back a quarter of the context, rounded up to a multiple of 128. The last layer has none.

    >>> nanochat_windows("SSSL", context=2048, depth=12), nanochat_windows("SL", context=100, depth=3)
    ({'window': 513, 'window_pattern': 'SSSL'}, {'window': 129, 'window_pattern': 'SLL'})
    """
    layers = min(depth, MAX_BLOCKS)
    letters = (pattern * (layers // len(pattern) + 1))[: layers - 1] + "L"
    if "S" not in letters:
        return {}
    is_repeated = layers % len(pattern) == 0 and pattern.endswith("L")
    return {"window": -(-context // 4 // 128) * 128 + 1, "window_pattern": pattern if is_repeated else letters}


def llama(**overrides: Any) -> GPTConfig:
    """Return Llama: RMSNorm, SwiGLU, rotary, and grouped-query attention with about three query heads per KV head.

    >>> llama().activation, llama().kv_heads, llama(heads=8).kv_heads
    ('swiglu', 4, 2)
    """
    heads = overrides.get("heads", 12)
    check_positive_int(heads=heads)
    # The smallest group size of at least 3; the search is bounded for absurd numbers of heads.
    group = next((n for n in range(3, min(heads, 4096) + 1) if heads % n == 0), heads)
    return _preset(
        overrides,
        vocab_size=32000,
        context=2048,
        width=768,
        depth=12,
        heads=12,
        kv_heads=heads // group,
        positions="rotary",
        norm="rms",
        activation="swiglu",
        init="glorot-truncated",
    )


PRESETS: Mapping[str, Callable[..., GPTConfig]] = {
    "gpt2": gpt2,
    "nanochat": nanochat,
    "nanochat-2026-07": nanochat_2026_07,
    "llama": llama,
}


def preset(name: str, **overrides: Any) -> GPTConfig:
    """Return a preset by name, with overrides.

    >>> config = preset("llama", depth=4, norm="layer")
    >>> config.depth, config.norm.statistic, config.activation
    (4, 'standardize', 'swiglu')
    """
    return lookup("preset", name, PRESETS)(**overrides)


def _preset(overrides: Mapping[str, Any], **defaults: Any) -> GPTConfig:
    check_setting_names("a GPT", overrides, GPTConfig)
    return GPTConfig(**{**defaults, **overrides})


def _without_bias(norm: NormSpec | str | None) -> NormSpec | None:
    found = as_norm(norm)
    return found if found is None or isinstance(norm, NormSpec) else dataclasses.replace(found, bias=False)
