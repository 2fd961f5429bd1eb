"""Small models of transformers, made without a network, with weights that give logits of some size."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support import randn

VOCABULARY = 97
CONTEXT = 32

_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GPT2_SIZES: dict[str, Any] = {
    **_TOKENS, "n_positions": CONTEXT, "n_embd": 48, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}  # fmt: skip
SIZES: dict[str, Any] = {
    **_TOKENS, "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 10, "num_hidden_layers": 4, "sliding_window": 5}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
S, L = "sliding_attention", "full_attention"

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2_SIZES),
    "gpt2-inner": ("GPT2", {**GPT2_SIZES, "n_inner": 80}),
    "gpt2-gelu": ("GPT2", {**GPT2_SIZES, "activation_function": "gelu"}),
    "gpt2-relu": ("GPT2", {**GPT2_SIZES, "activation_function": "relu"}),
    "gpt2-silu": ("GPT2", {**GPT2_SIZES, "activation_function": "silu"}),
    "gpt2-own-head": ("GPT2", {**GPT2_SIZES, "tie_word_embeddings": False}),
    "gpt2-large-eps": ("GPT2", {**GPT2_SIZES, "layer_norm_epsilon": 0.1}),
    "llama": ("Llama", SIZES),
    "llama-grouped": ("Llama", GROUPED),
    "llama-one-kv-head": ("Llama", {**SIZES, "num_key_value_heads": 1}),
    "llama-head-size": ("Llama", {**SIZES, "head_dim": 12}),
    "llama-tied": ("Llama", {**SIZES, "tie_word_embeddings": True}),
    "llama-base": ("Llama", {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama-large-eps": ("Llama", {**SIZES, "rms_norm_eps": 0.1}),
    "llama-3": ("Llama", {**GROUPED, "rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", {**SIZES, "rope_parameters": LINEAR}),
    "llama-yarn": ("Llama", {**GROUPED, "rope_parameters": YARN, "head_dim": 16}),
    "llama-attention-bias": ("Llama", {**GROUPED, "attention_bias": True}),
    "llama-mlp-bias": ("Llama", {**SIZES, "mlp_bias": True}),
    "llama-biases": ("Llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 5}),
    "mistral-no-window": ("Mistral", {**GROUPED, "sliding_window": None, "head_dim": 12}),
    "nanochat": ("NanoChat", {**SIZES, "num_key_value_heads": 6}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen2-window": (
        "Qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "qwen2-tied": ("Qwen2", {**GROUPED, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen2-yarn": (
        "Qwen2",
        {
            **GROUPED,
            "rope_parameters": {**YARN, "beta_fast": 4, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 0.8},
        },
    ),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 16}),
    "qwen3-bias": ("Qwen3", {**GROUPED, "head_dim": 16, "attention_bias": True}),
    "qwen3-window": (
        "Qwen3", {**GROUPED, "head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "layer_types": [L, S, S]}
    ),
    "olmo2": ("Olmo2", GROUPED),
    "olmo2-bias": ("Olmo2", {**SIZES, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {**GEMMA, "query_pre_attn_scalar": 7}),
    "gemma2-no-caps": (
        "Gemma2",
        {**GEMMA, "final_logit_softcapping": None, "attn_logit_softcapping": None, "query_pre_attn_scalar": 10},
    ),
    "gemma2-bias": ("Gemma2", {**GEMMA, "attention_bias": True, "layer_types": [L, S, S, L]}),
    "gemma3": ("Gemma3Text", {**GEMMA, "query_pre_attn_scalar": 7}),
    "gemma3-linear": (
        "Gemma3Text",
        {
            **GEMMA, "layer_types": [S, S, L, S], "final_logit_softcapping": 3.0, "tie_word_embeddings": False,
            "rope_parameters": {S: {"rope_type": "default", "rope_theta": 100.0}, L: LINEAR},
        },
    ),
    "phi3": ("Phi3", GROUPED),
    "phi3-window": ("Phi3", {**SIZES, "sliding_window": 5}),
    "phi3-part": ("Phi3", {**SIZES, "rope_parameters": {"partial_rotary_factor": 0.75}, "num_attention_heads": 3}),
    "phi3-longrope": (
        "Phi3",
        {
            **SIZES, "max_position_embeddings": 4 * CONTEXT, "original_max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "longrope", "short_factor": [1.0, 1.2, 1.5, 2.5], "long_factor": [1.0, 2.0, 3.0, 4.0],
            },
        },
    ),
    "smollm3": ("SmolLM3", {**GROUPED, "no_rope_layer_interval": 2}),
    "smollm3-window": (
        "SmolLM3",
        {
            **GROUPED, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5,
            "layer_types": [S, L, S], "attention_bias": True, "tie_word_embeddings": False,
        },
    ),
    "neox": ("GPTNeoX", SIZES),
    "neox-sequential": ("GPTNeoX", {**SIZES, "use_parallel_residual": False, "attention_bias": False}),
    "neox-all-rotary": (
        "GPTNeoX",
        {**SIZES, "rope_parameters": {"partial_rotary_factor": 1.0, **LINEAR}, "tie_word_embeddings": True},
    ),
    "neox-yarn": ("GPTNeoX", {**SIZES, "rope_parameters": {**YARN, "partial_rotary_factor": 0.5, "beta_fast": 2}}),
    "neox-half-rotary": ("GPTNeoX", {**SIZES, "rope_parameters": {"partial_rotary_factor": 0.5}}),
}  # fmt: skip


def made(form: str, **changes: Any) -> Any:
    """The model of this form, with random weights: the initialization of transformers would give logits near zero."""
    name, settings = FORMS[form]
    return made_of(getattr(transformers, f"{name}Config")(**{**settings, **changes}))


def made_of(config: Any) -> Any:
    """A model of this config, with random weights."""
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return with_random_weights(model, adds_one=config.model_type.startswith("gemma"))


def with_random_weights(model: Any, *, adds_one: bool) -> Any:
    """Give a model random weights; `adds_one` says that its gains are differences from one."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            gain = "norm" in name or ".ln_" in name
            spread = 0.3 * randn(*parameter.shape, seed=i, dtype=torch.float32)
            parameter.copy_(1 + spread if gain and name.endswith("weight") and not adds_one else spread)
    return model.eval()


def stored(model: Any) -> dict[str, Tensor]:
    """The weights by the names of files: transformers has another name for the head of GPT-NeoX."""
    renamed = {"lm_head.weight": "embed_out.weight"} if model.config.model_type == "gpt_neox" else {}
    return {renamed.get(name, name): weight for name, weight in model.state_dict().items()}
