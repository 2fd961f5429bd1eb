"""The architectures of GGUF files: their metadata as the settings of a Hugging Face family, the names of their tensors.

llama.cpp's converter changes three things that are changed back here: it sorts the rows of q and k of some
architectures for rotary embeddings of neighboring features, adds one to Gemma's gains, and splits fused q, k and v of
GPT-NeoX by rows instead of heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normscope.interop.weight_table import Source, WeightTable

Metadata = Mapping[str, Any]
"""The metadata of an architecture, without its name before each key."""

_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_ROTARY = {**_SIZES, "attention.head_count_kv": "num_key_value_heads", "rope.freq_base": "rope_theta"}
_RMS = {**_ROTARY, "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim"}
_GEMMA = {
    **_RMS,
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base_swa": "rope_local_base_freq",
}

_OUTSIDE = {"embedding": "token_embd", "final_norm": "output_norm", "head": "output"}
_NORMS = {"blocks.{i}.norms.0": "blk.{i}.attn_norm", "blocks.{i}.norms.1": "blk.{i}.ffn_norm"}
_SEPARATE_QKV = {f"blocks.{{i}}.attention.{name}": f"blk.{{i}}.attn_{name}" for name in "qkv"}
_FUSED_QKV = {f"blocks.{{i}}.attention.{name}": Source("blk.{i}.attn_qkv", fused="rows") for name in "qkv"}
_QK_NORMS = {f"blocks.{{i}}.attention.{name}_norm": f"blk.{{i}}.attn_{name}_norm" for name in "qk"}
_UP_DOWN = {
    "blocks.{i}.attention.out": "blk.{i}.attn_output",
    "blocks.{i}.mlp.up": "blk.{i}.ffn_up",
    "blocks.{i}.mlp.down": "blk.{i}.ffn_down",
}
_GATED: dict[str, str | Source] = {**_OUTSIDE, **_SEPARATE_QKV, **_UP_DOWN, "blocks.{i}.mlp.gate": "blk.{i}.ffn_gate"}
_LLAMA = {**_GATED, **_NORMS}
_PLAIN: dict[str, str | Source] = {**_OUTSIDE, **_NORMS, **_FUSED_QKV, **_UP_DOWN}
_GATE_UP: dict[str, str | Source] = {
    f"blocks.{{i}}.mlp.{name}": Source("blk.{i}.ffn_up", fused="rows") for name in ("gate", "up")
}
_SANDWICH: dict[str, str | Source] = {
    **_GATED,
    "blocks.{i}.norms.0": "blk.{i}.attn_norm",
    "blocks.{i}.norms.1": "blk.{i}.post_attention_norm",
    "blocks.{i}.norms.2": "blk.{i}.ffn_norm",
    "blocks.{i}.norms.3": "blk.{i}.post_ffw_norm",
}


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    Args:
        family: the model_type of the Hugging Face family.
        names: metadata, and the setting in config.json that it is.
        layers: our layers and their names; see `WeightTable`.
        more: further settings, from the metadata.
        handled: further keys of the metadata that `more` reads, or that need not be read.
        neighbors: whether the rows of q and k are sorted for rotary embeddings of neighboring features.
        biases: settings that say whether a layer of the first block has a bias.
    """

    family: str
    names: Mapping[str, str]
    layers: Mapping[str, str | Source]
    more: Callable[[Metadata], dict[str, Any]] = lambda _: {}
    handled: frozenset[str] = frozenset()
    neighbors: bool = False
    biases: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight_table(self) -> WeightTable:
        return WeightTable(self.layers)


def head_dim(metadata: Metadata) -> int:
    """The size of a head."""
    found: int = metadata.get("attention.key_length") or (
        metadata["embedding_length"] // metadata["attention.head_count"]
    )
    return found


def _rotated_part(name: str) -> Callable[[Metadata], dict[str, Any]]:
    """The setting for the rotated fraction of a head, which is read as int(head_dim * fraction)."""

    def read(metadata: Metadata) -> dict[str, Any]:
        size = head_dim(metadata)
        rotated = metadata.get("rope.dimension_count", size)
        return {name: 1.0 if rotated == size else (rotated + 0.5) / size}

    return read


def _phi3(metadata: Metadata) -> dict[str, Any]:
    window = metadata.get("attention.sliding_window") or None  # 0 is none
    return {**_rotated_part("partial_rotary_factor")(metadata), "sliding_window": window}


def _gpt_neox(metadata: Metadata) -> dict[str, Any]:
    parallel = bool(metadata.get("use_parallel_residual", True))
    return {**_rotated_part("rotary_pct")(metadata), "use_parallel_residual": parallel}


def _gemma(period: int, largest: int) -> Callable[[Metadata], dict[str, Any]]:
    """Settings of Gemma.

    Args:
        period: every how many layers one has no window.
        largest: number of layers of the largest model, whose scale of the attention is another one.
    """

    def read(metadata: Metadata) -> dict[str, Any]:
        depth, heads = metadata["block_count"], metadata["attention.head_count"]
        pattern = metadata.get("attention.sliding_window_pattern", period)
        if not isinstance(pattern, list):
            pattern = [(i + 1) % pattern != 0 for i in range(depth)]
        size = metadata["embedding_length"] // heads if depth == largest else head_dim(metadata)
        types = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
        window = metadata.get("attention.sliding_window", 4096 if period == 2 else 0) or None
        return {
            "query_pre_attn_scalar": size,
            "layer_types": types if window else ["full_attention"] * depth,
            "sliding_window": window,
        }

    return read


def _gemma2(metadata: Metadata) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": metadata.get("attn_logit_softcapping")}
    return {**_gemma(2, 46)(metadata), **caps, "final_logit_softcapping": metadata.get("final_logit_softcapping")}


_LLAMA_BIASES = {"attention_bias": "attn_output", "mlp_bias": "ffn_up"}
_ATTENTION_BIAS = {"attention_bias": "attn_q"}
_PATTERN = frozenset({"attention.sliding_window_pattern"})

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _RMS, _LLAMA, neighbors=True, biases=_LLAMA_BIASES),
    "smollm3": Architecture("smollm3", _RMS, _LLAMA, neighbors=True, biases=_LLAMA_BIASES),
    "qwen2": Architecture("qwen2", _RMS, _LLAMA),
    "qwen3": Architecture("qwen3", _RMS, {**_LLAMA, **_QK_NORMS}, biases=_ATTENTION_BIAS),
    "gemma2": Architecture(
        "gemma2", _GEMMA, _SANDWICH, _gemma2, _PATTERN | {"attn_logit_softcapping"}, biases=_ATTENTION_BIAS
    ),
    "gemma3": Architecture(
        "gemma3_text", _GEMMA, {**_SANDWICH, **_QK_NORMS}, _gemma(6, 62), _PATTERN, biases=_ATTENTION_BIAS
    ),
    "phi3": Architecture(
        "phi3",
        _RMS,
        {**_GATE_UP, **{own: theirs for own, theirs in _PLAIN.items() if own not in _GATE_UP}},
        _phi3,
        frozenset({"attention.sliding_window", "rope.scaling.original_context_length"}),
    ),
    "olmo2": Architecture(
        "olmo2",
        _RMS,
        {
            **_GATED,
            **_QK_NORMS,
            "blocks.{i}.norms.0": "blk.{i}.post_attention_norm",
            "blocks.{i}.norms.1": "blk.{i}.post_ffw_norm",
        },
        biases=_ATTENTION_BIAS,
    ),
    "gptneox": Architecture(
        "gpt_neox",
        {**_ROTARY, "attention.layer_norm_epsilon": "layer_norm_eps", "rope.freq_base": "rotary_emb_base"},
        _PLAIN,
        _gpt_neox,
        frozenset({"use_parallel_residual"}),
        biases={"attention_bias": "attn_qkv"},
    ),
    "gpt2": Architecture(
        "gpt2",
        {
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        {**_PLAIN, "position": "position_embd"},
        handled=frozenset({"attention.head_count_kv"}),
    ),
}
"""By general.architecture."""
