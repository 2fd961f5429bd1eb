"""The GPTs of nanoGPT, nanochat and Llama, as configs. Every field can be overridden: `gpt2(depth=4, width=128)`."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from normscope.blocks.checks import check_positive, choose
from normscope.blocks.norm.spec import TEXT_NORMS, named_norm
from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig


def gpt2(**overrides: Any) -> GPTConfig:
    """nanoGPT's GPT-2: learned positions, LayerNorm, GELU, biases, a tied head. `bias=False` drops every bias.

    >>> gpt2().width, gpt2(bias=False).norm.bias
    (768, False)
    """
    norm = dataclasses.replace(TEXT_NORMS["layer"], bias=bool(overrides.get("bias", True)))
    return _preset(
        overrides,
        vocab_size=50304,  # 50257, rounded up to a multiple of 64 as nanoGPT does
        context=1024,
        width=768,
        depth=12,
        heads=12,
        positions="learned",
        norm=norm,
        activation="gelu",
        bias=True,
        tied_head=True,
        init="gpt2",
    )


def nanochat(**overrides: Any) -> GPTConfig:
    """nanochat's: rotary, QK-norm, RMSNorm without parameters also after the embedding, ReLU^2, a capped zero head.

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
        norm=TEXT_NORMS["rms-plain"],
        qk_norm=TEXT_NORMS["rms-plain"],
        embedding_norm=True,
        activation="relu2",
        logit_cap=15.0,
        init="nanochat",
    )


def llama(**overrides: Any) -> GPTConfig:
    """Llama's: RMSNorm with a gain, SwiGLU, rotary positions, grouped queries: about three heads share keys and values.

    >>> llama().activation, llama().kv_heads, llama(heads=8).kv_heads
    ('swiglu', 4, 2)
    """
    heads = overrides.get("heads", 12)
    check_positive(heads=heads)
    shared = next(kv for kv in range(max(1, heads // 3), 0, -1) if heads % kv == 0)
    return _preset(
        overrides,
        vocab_size=32000,
        context=2048,
        width=768,
        depth=12,
        heads=12,
        kv_heads=shared,
        positions="rotary",
        norm=TEXT_NORMS["rms"],
        activation="swiglu",
        init="glorot-truncated",
    )


PRESETS: Mapping[str, Callable[..., GPTConfig]] = {"gpt2": gpt2, "nanochat": nanochat, "llama": llama}


def preset(name: str, **overrides: Any) -> GPTConfig:
    """The preset of this name."""
    return choose("preset", name, PRESETS)(**overrides)


def _preset(overrides: Mapping[str, Any], **defaults: Any) -> GPTConfig:
    known = [field.name for field in dataclasses.fields(GPTConfig)]
    for name in overrides:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the settings are: {', '.join(known)}"
            raise ConfigError(f"a GPT has no setting {name!r}; {hint}")
    chosen = {**defaults, **overrides}
    for name in ("norm", "qk_norm"):
        if isinstance(chosen.get(name), str):
            chosen[name] = named_norm(chosen[name])
    return GPTConfig(**chosen)
