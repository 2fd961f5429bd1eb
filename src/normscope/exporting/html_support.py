"""What the exported page supports: configs, norms and tokenizers, as its code needs them. Others are refused by name.

Norms must be over the features of a single token.
"""

import dataclasses
import json
import math
from typing import Any

from normscope.blocks.block import Block
from normscope.blocks.norm.base import Norm
from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.errors import ConfigError
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.norm.statistic import RMS, STANDARDIZE

_FLOAT32_EPS = 2.0**-23
ONLY_DEFAULT = (
    "attention_cap", "attention_scale", "backout", "embedding_mix", "embedding_scale", "local_rotary_base",
    "rotary_dim", "rotary_pattern", "rotary_scaling", "smear", "value_embeddings", "window_pattern",
)  # fmt: skip
"""Fields of `GPTConfig` that the page does not have."""
SUPPORTED = {
    "wiring": ("pre", "post", "sandwich", "parallel", "single", "none"),
    "activation": ("relu2", "relu", "gelu", "gelu-tanh", "silu", "swiglu", "reglu", "geglu"),
}
"""Values that the page knows; a wiring or activation that is added to normscope is refused until the page has it."""


def check_config(config: GPTConfig) -> None:
    """Refuse a config that the page cannot run."""
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    as_default = {"rotary_dim": config.head_sizes[2]}
    for name in (*ONLY_DEFAULT, *SUPPORTED):
        value = getattr(config, name)
        if value not in SUPPORTED.get(name, (defaults[name], as_default.get(name))):
            raise ConfigError(
                f"the page cannot run a model with {name}={value!r}\n"
                f"fix: use --to onnx, or train another model, such as --preset llama"
            )


NormTable = dict[str, Any]


def norm_tables(model: GPT) -> dict[str, NormTable | None]:
    """Describe the norms of a model for the page: whether they center, eps, and how many values share a statistic.

    >>> from normscope.models.presets import nanochat
    >>> norm_tables(GPT(nanochat(vocab_size=8, context=4, depth=1, width=8, heads=2, norm="layer")))
    {'norm': {'centers': True, 'eps': 1e-05, 'group': 8}, 'qk_norm': {'centers': False, 'eps': 1.1920928955078125e-07, \
'group': 4}}
    """
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention = block.attention
    heads = {(attention.heads, attention.head_dim), (attention.kv_heads, attention.head_dim)}
    qk = [_norm_table(attention.q_norm, "qk_norm", sizes) for sizes in sorted(heads)]
    if qk[0] != qk[-1]:
        raise _unsupported("qk_norm", attention.q_norm, "it differs between queries and keys")
    width_norm = next((norm for norm in block.norms if isinstance(norm, Norm)), None)
    return {"norm": _norm_table(width_norm, "norm", (model.config.width,)), "qk_norm": qk[0]}


def _norm_table(norm: Norm | None, field: str, sizes: tuple[int, ...]) -> NormTable | None:
    if norm is None:
        return None
    if norm.state is not None:
        raise _unsupported(field, norm, f"it has running statistics (state={norm.state!r})")
    if norm.statistic not in (STANDARDIZE, RMS):
        raise _unsupported(field, norm, f"its statistic {norm.statistic.name!r} is not in the page")
    plan = norm.scope.bind((2, 3, *sizes), **norm.sizes)
    first = min(plan.reduced)
    if first < 2 or plan.reduced != tuple(range(first, len(plan.split_shape))):
        raise _unsupported(field, norm, "its brackets are not the last features of each token")
    along = () if norm.axes is None else plan.broadcast_shape(norm.axes.names)
    if along and not any(along == (1,) * i + plan.split_shape[i:] for i in range(2, len(along))):
        raise _unsupported(field, norm, "its weight is not along the last features")
    eps = _FLOAT32_EPS if norm.eps is None else norm.eps
    return {"centers": norm.statistic.centers, "eps": eps, "group": math.prod(plan.split_shape[first:])}


def _unsupported(field: str, norm: Norm | None, problem: str) -> ConfigError:
    scope = "" if norm is None else f"={str(norm.scope)!r}"
    return ConfigError(
        f"the page cannot run a model with {field}{scope}: {problem}\n"
        f"fix: train with a norm over the features of a token, such as --model {field}=rms"
    )


def tokenizer_content(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of the tokenizer's file, after checking that the page can run it."""
    if not tokenizer.has_eos:
        raise _unsupported_tokenizer("a vocabulary without an end-of-text token")
    content: dict[str, Any] = json.loads(tokenizer.to_json())
    if not isinstance(tokenizer, ByteTokenizer | CharacterTokenizer):
        _check_byte_level_bpe(content)
    return content


def _check_byte_level_bpe(content: dict[str, Any]) -> None:
    from normscope.data.tokenizers.huggingface import bytes_to_unicode  # needs the library, and so does this tokenizer

    model, splitter, decoder = (content.get(name) or {} for name in ("model", "pre_tokenizer", "decoder"))
    for name, value, allowed in (
        ("model.type", model.get("type", "BPE"), ("BPE",)),
        ("model.unk_token", model.get("unk_token"), (None,)),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix") or None, (None,)),
        ("model.end_of_word_suffix", model.get("end_of_word_suffix") or None, (None,)),
        ("model.byte_fallback", model.get("byte_fallback", False), (False,)),
        ("model.ignore_merges", model.get("ignore_merges", False), (False,)),
        ("normalizer", (content.get("normalizer") or {}).get("type"), (None,)),
        ("pre_tokenizer", splitter.get("type"), ("ByteLevel",)),
        ("pre_tokenizer.add_prefix_space", splitter.get("add_prefix_space", True), (False,)),
        ("pre_tokenizer.use_regex", splitter.get("use_regex", True), (True,)),
        ("decoder", decoder.get("type"), ("ByteLevel",)),
    ):
        if value not in allowed:
            raise _unsupported_tokenizer(f"{name}={value!r:.60}")
    plain = [token["content"] for token in content["added_tokens"] if not token["special"]]
    if plain:
        raise _unsupported_tokenizer(f"added_tokens that are not special, such as {plain[0]!r:.60}")
    for byte, character in enumerate(bytes_to_unicode()):
        if character not in model["vocab"]:
            raise _unsupported_tokenizer(f"a vocabulary that lacks the byte 0x{byte:02X}")


def _unsupported_tokenizer(what: str) -> ConfigError:
    return ConfigError(
        f"the page cannot run a tokenizer with {what}\n"
        f"fix: train with --tokenizer bpe, characters or bytes, or a byte-level BPE such as GPT-2's"
    )
