"""The architectures of GGUF files: their metadata as the settings of a Hugging Face family, the names of their tensors.

llama.cpp's converter changes three things that are changed back here: it sorts the rows of q and k of some
architectures for rotary embeddings of neighboring features, adds one to Gemma's gains, and splits fused q, k and v of
GPT-NeoX by rows instead of heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normscope.interop.gguf.settings import (
    LISTED_LAYERS,
    PARALLEL_BRANCHES,
    UNUSED_WINDOW,
    Extra,
    Metadata,
    gemma_layers,
    rotated_part,
)
from normscope.interop.huggingface.weight_table import Source, WeightTable
from normscope.models.gpt import GPTConfig

Limits = Mapping[str, Callable[[GPTConfig], bool]]
"""For fields, whether llama.cpp runs a model with the field of this config."""

SINKS = "blk.{i}.attn_sinks.weight"
"""A logit of each head that no value belongs to."""
SWITCHED_OFF = -1e30
"""The logit of a sink that takes no attention."""

_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_ROTARY = {**_SIZES, "attention.head_count_kv": "num_key_value_heads", "rope.freq_base": "rope_theta"}
_RMS = {**_ROTARY, "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim"}
_GEMMA = {**_RMS, "final_logit_softcapping": "final_logit_softcapping"}

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
        extras: further settings that the metadata has.
        harmless: further keys of the metadata that need not be read.
        neighbors: whether the rows of q and k are sorted for rotary embeddings of neighboring features.
        biases: settings that say whether a layer of the first block has a bias.
        divides_frequencies: whether llama.cpp divides the rotary frequencies by a tensor, as Llama 3.1 needs.
        has_sinks: whether llama.cpp wants a sink for each head, which normscope's models do not have.
        limits: fields of which llama.cpp runs fewer values than the family has.
    """

    family: str
    names: Mapping[str, str]
    layers: Mapping[str, str | Source]
    extras: tuple[Extra, ...] = ()
    harmless: frozenset[str] = frozenset()
    neighbors: bool = False
    biases: Mapping[str, str] = field(default_factory=dict)
    divides_frequencies: bool = False
    has_sinks: bool = False
    limits: Limits = field(default_factory=dict)

    @property
    def weight_table(self) -> WeightTable:
        return WeightTable(self.layers)

    @property
    def extra_keys(self) -> frozenset[str]:
        return frozenset(key for extra in self.extras for key in extra.keys)

    def settings(self, metadata: Metadata) -> dict[str, Any]:
        """The settings of config.json that the metadata has."""
        found = {name: metadata[key] for key, name in self.names.items() if key in metadata}
        for extra in self.extras:
            found |= extra.read(metadata)
        return {"model_type": self.family, **found}


_ATTENTION_AND_MLP = {"attention_bias": "attn_output", "mlp_bias": "ffn_up"}
_ATTENTION_BIAS = {"attention_bias": "attn_q"}

_FULL_WIDTH: Limits = {"head_dim": lambda config: config.head_sizes[2] * config.heads == config.width}
_NO_BIAS: Limits = {"bias": lambda config: config.bias is False}
_TIED: Limits = {"tied_head": lambda config: config.tied_head}
_UNTIED: Limits = {"tied_head": lambda config: not config.tied_head}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _RMS, _LLAMA, neighbors=True, biases=_ATTENTION_AND_MLP, divides_frequencies=True),
    "qwen2": Architecture("qwen2", _RMS, _LLAMA, limits=_FULL_WIDTH),
    "qwen3": Architecture("qwen3", _RMS, {**_LLAMA, **_QK_NORMS}, biases=_ATTENTION_BIAS, limits=_NO_BIAS),
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
        limits={**_FULL_WIDTH, **_NO_BIAS, **_UNTIED},
    ),
    "gemma2": Architecture(
        "gemma2",
        {**_GEMMA, "attn_logit_softcapping": "attn_logit_softcapping"},
        _SANDWICH,
        (gemma_layers(period=2, largest=46),),
        biases=_ATTENTION_BIAS,
        limits={**_NO_BIAS, **_TIED},
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {**_GEMMA, "rope.freq_base_swa": "rope_local_base_freq"},
        {**_SANDWICH, **_QK_NORMS},
        (gemma_layers(period=6, largest=62),),
        biases=_ATTENTION_BIAS,
        limits=_NO_BIAS,
    ),
    "phi3": Architecture(
        "phi3",
        _RMS,
        {**_GATE_UP, **{own: theirs for own, theirs in _PLAIN.items() if own not in _GATE_UP}},
        (rotated_part("partial_rotary_factor"), UNUSED_WINDOW),
        harmless=frozenset({"rope.scaling.original_context_length"}),
        limits=_FULL_WIDTH,
    ),
    "smollm3": Architecture("smollm3", _RMS, _LLAMA, neighbors=True, biases=_ATTENTION_AND_MLP, limits=_NO_BIAS),
    "gptneox": Architecture(
        "gpt_neox",
        {**_ROTARY, "attention.layer_norm_epsilon": "layer_norm_eps", "rope.freq_base": "rotary_emb_base"},
        _PLAIN,
        (rotated_part("rotary_pct"), PARALLEL_BRANCHES),
        biases={"attention_bias": "attn_qkv"},
        limits={**_UNTIED, "bias": lambda config: config.bias is True},
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
        harmless=frozenset({"attention.head_count_kv"}),
    ),
    # Granite's with windows is Llama with any layers windowed or without rotary embeddings.
    "granite_swa": Architecture(
        "smollm3",
        _RMS,
        _LLAMA,
        (LISTED_LAYERS,),
        neighbors=True,
        biases=_ATTENTION_AND_MLP,
        divides_frequencies=True,
        has_sinks=True,
    ),
}
"""By general.architecture; the first that has a model is written."""
