"""The architectures of transformers that our models have: requirements, config.json, and the names of the weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.norm.norm_spec import NormSpec, as_norm
from normscope.exporting.requirements import Requirements, anything, check_representable, is_norm, is_one_of
from normscope.models.gpt import GPTConfig

FLOAT32_EPS = 2.0**-23
_Change = Callable[[GPTConfig, str, Tensor], Tensor]


@dataclass(frozen=True)
class Architecture:
    """An architecture of transformers.

    Args:
        name: the class with a language-modeling head.
        requirements: the configs that it can represent.
        settings: (config) -> its part of config.json.
        tensors: their name -> our names, stacked along their rows; `{i}` is the index of a block.
        change: (config, our name, tensor) -> tensor, where the layout differs.
    """

    name: str
    requirements: Requirements
    settings: Callable[[GPTConfig], dict[str, Any]]
    tensors: Mapping[str, tuple[str, ...]]
    change: _Change = lambda config, name, tensor: tensor

    def weights(self, config: GPTConfig, ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by their names, one at a time."""
        for theirs, names in self.tensors.items():
            for i in range(config.depth if "{i}" in theirs else 1):
                for part in ("weight", "bias"):
                    found = [f"{name}.{part}".format(i=i) for name in names]
                    if found[0] in ours:
                        parts = [self.change(config, name, ours[name]) for name in found]
                        stacked = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
                        yield f"{theirs}.{part}".format(i=i), stacked


def architecture_of(config: GPTConfig) -> Architecture:
    """Return the architecture that can represent a config; raise a ConfigError that names the fields otherwise."""
    found = check_representable(config, "transformers", [one.requirements for one in ARCHITECTURES])
    return next(one for one in ARCHITECTURES if one.requirements is found)


def eps_of(norm: NormSpec | str | None) -> float:
    found = as_norm(norm)
    assert found is not None
    return FLOAT32_EPS if found.eps is None else found.eps


_GPT2_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def _gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": config.hidden_size,
        "activation_function": _GPT2_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": eps_of(config.norm),
        "tie_word_embeddings": config.tied_head,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
    }


def _llama_settings(config: GPTConfig) -> dict[str, Any]:
    heads, kv_heads, head_dim = config.head_sizes
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "intermediate_size": config.hidden_size,
        "num_hidden_layers": config.depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": eps_of(config.norm),
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.dropout,
    }


def _transpose_linears(config: GPTConfig, name: str, tensor: Tensor) -> Tensor:
    """GPT-2 stores the matrices of its blocks as (in, out)."""
    return tensor.t() if name.startswith("blocks.") and tensor.dim() == 2 else tensor


def _negate_second_halves(config: GPTConfig, name: str, tensor: Tensor) -> Tensor:
    """Their rotation has the opposite sign: negating the second half of q and k turns it around."""
    if ".attention.q." not in name and ".attention.k." not in name:
        return tensor
    heads = tensor.unflatten(0, (-1, 2, config.head_sizes[2] // 2))
    return torch.stack([heads[:, 0], -heads[:, 1]], dim=1).reshape(tensor.shape)


_GPT2 = Architecture(
    "GPT2LMHeadModel",
    Requirements(
        "GPT2LMHeadModel",
        {
            "positions": is_one_of("learned"),
            "rotary_base": anything,
            "norm": is_norm("standardize", bias=True),
            "activation": is_one_of(*_GPT2_ACTIVATIONS),
            "bias": is_one_of(True),
            "tied_head": anything,
            "wiring": is_one_of("pre"),
        },
    ),
    _gpt2_settings,
    {
        "transformer.wte": ("embedding",),
        "transformer.wpe": ("position",),
        "transformer.h.{i}.ln_1": ("blocks.{i}.norms.0",),
        "transformer.h.{i}.attn.c_attn": tuple(f"blocks.{{i}}.attention.{part}" for part in "qkv"),
        "transformer.h.{i}.attn.c_proj": ("blocks.{i}.attention.out",),
        "transformer.h.{i}.ln_2": ("blocks.{i}.norms.1",),
        "transformer.h.{i}.mlp.c_fc": ("blocks.{i}.mlp.up",),
        "transformer.h.{i}.mlp.c_proj": ("blocks.{i}.mlp.down",),
        "transformer.ln_f": ("final_norm",),
        "lm_head": ("head",),
    },
    _transpose_linears,
)

_LLAMA_TENSORS = {
    "model.embed_tokens": ("embedding",),
    "model.layers.{i}.input_layernorm": ("blocks.{i}.norms.0",),
    "model.layers.{i}.self_attn.q_proj": ("blocks.{i}.attention.q",),
    "model.layers.{i}.self_attn.k_proj": ("blocks.{i}.attention.k",),
    "model.layers.{i}.self_attn.v_proj": ("blocks.{i}.attention.v",),
    "model.layers.{i}.self_attn.o_proj": ("blocks.{i}.attention.out",),
    "model.layers.{i}.post_attention_layernorm": ("blocks.{i}.norms.1",),
    "model.norm": ("final_norm",),
    "lm_head": ("head",),
}

_LLAMA = Architecture(
    "LlamaForCausalLM",
    Requirements(
        "LlamaForCausalLM",
        {
            "positions": is_one_of("rotary"),
            "rotary_base": anything,
            "norm": is_norm("rms", bias=False),
            "activation": is_one_of("swiglu"),
            "kv_heads": anything,
            "head_dim": anything,
            "bias": is_one_of(False),
            "tied_head": anything,
            "wiring": is_one_of("pre"),
        },
    ),
    lambda config: {"model_type": "llama", "hidden_act": "silu", **_llama_settings(config)},
    {
        **_LLAMA_TENSORS,
        "model.layers.{i}.mlp.gate_proj": ("blocks.{i}.mlp.gate",),
        "model.layers.{i}.mlp.up_proj": ("blocks.{i}.mlp.up",),
        "model.layers.{i}.mlp.down_proj": ("blocks.{i}.mlp.down",),
    },
)


def _is_plain_rms(value: Any) -> bool:
    norm = as_norm(value)
    return norm is not None and (norm.statistic, norm.state, norm.affine) == ("rms", None, None)


_NANOCHAT = Architecture(
    "NanoChatForCausalLM",
    Requirements(
        "NanoChatForCausalLM",
        {
            "positions": is_one_of("rotary"),
            "rotary_base": anything,
            "norm": _is_plain_rms,
            "qk_norm": _is_plain_rms,
            "embedding_norm": is_one_of(True),
            "logit_cap": anything,
            "activation": is_one_of("relu2"),
            "kv_heads": anything,
            "bias": is_one_of(False),
            "tied_head": anything,
            "wiring": is_one_of("pre"),
        },
    ),
    lambda config: {
        "model_type": "nanochat",
        "hidden_act": "relu2",
        "final_logit_softcapping": config.logit_cap,
        **_llama_settings(config),
    },
    {
        **_LLAMA_TENSORS,
        "model.layers.{i}.mlp.fc1": ("blocks.{i}.mlp.up",),
        "model.layers.{i}.mlp.fc2": ("blocks.{i}.mlp.down",),
    },
    _negate_second_halves,
)

ARCHITECTURES = (_GPT2, _LLAMA, _NANOCHAT)
