"""Small models of transformers, made without a network, with weights that give logits of some size."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from tests.support import randn

VOCABULARY = 97

GPT2_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 4, "bos_token_id": 0,
    "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 32,
}  # fmt: skip

FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gpt2": (GPT2Config, GPT2_SIZES),
    "gpt2-inner": (GPT2Config, {**GPT2_SIZES, "n_inner": 80}),
    "gpt2-gelu": (GPT2Config, {**GPT2_SIZES, "activation_function": "gelu"}),
    "gpt2-relu": (GPT2Config, {**GPT2_SIZES, "activation_function": "relu"}),
    "gpt2-silu": (GPT2Config, {**GPT2_SIZES, "activation_function": "silu"}),
    "gpt2-own-head": (GPT2Config, {**GPT2_SIZES, "tie_word_embeddings": False}),
    "gpt2-large-eps": (GPT2Config, {**GPT2_SIZES, "layer_norm_epsilon": 0.1}),
    "llama": (LlamaConfig, LLAMA_SIZES),
    "llama-grouped": (LlamaConfig, {**LLAMA_SIZES, "num_key_value_heads": 2}),
    "llama-one-kv-head": (LlamaConfig, {**LLAMA_SIZES, "num_key_value_heads": 1}),
    "llama-head-size": (LlamaConfig, {**LLAMA_SIZES, "head_dim": 12}),
    "llama-tied": (LlamaConfig, {**LLAMA_SIZES, "tie_word_embeddings": True}),
    "llama-base": (LlamaConfig, {**LLAMA_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama-large-eps": (LlamaConfig, {**LLAMA_SIZES, "rms_norm_eps": 0.1}),
}


def made(form: str, **changes: Any) -> Any:
    """The model of this form, with random weights: the initialization of transformers would give logits near zero."""
    config, settings = FORMS[form]
    model: Any = AutoModelForCausalLM.from_config(config(**{**settings, **changes}))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            gain = "norm" in name or ".ln_" in name
            spread = 0.3 * randn(*parameter.shape, seed=i, dtype=torch.float32)
            parameter.copy_(1 + spread if gain and name.endswith("weight") else spread)
    return model.eval()
