"""config.json and weights as releases from 2019 on have them: the same model as that of transformers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.errors import WeightsError
from normscope.interop.huggingface.read import gpt_from_huggingface
from tests.interop.checkpoints import CONTEXT, VOCABULARY, made, stored
from tests.interop.test_huggingface import TOKENS, close

Settings = dict[str, Any]
Weights = dict[str, Tensor]
LAYERS = range(3)


def gpt2(**more: Any) -> Settings:
    """The config.json of 2019."""
    return {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": CONTEXT, "n_embd": 48,
        "n_head": 4, "n_layer": 3, "n_positions": CONTEXT, "resid_pdrop": 0.0, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": VOCABULARY, **more,
    }  # fmt: skip


def llama(**more: Any) -> Settings:
    """The config.json of the first conversions, in 2023: without num_key_value_heads, head_dim and rope_theta."""
    return {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 112,
        "initializer_range": 0.02, "max_position_embeddings": CONTEXT, "model_type": "llama", "num_attention_heads": 6,
        "num_hidden_layers": 3, "rms_norm_eps": 1e-06, "torch_dtype": "float16", "transformers_version": "4.28.1",
        "use_cache": True, "vocab_size": VOCABULARY, **more,
    }  # fmt: skip


def neox(**more: Any) -> Settings:
    """The config.json of Pythia."""
    return {
        "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 48, "initializer_range": 0.02,
        "intermediate_size": 112, "layer_norm_eps": 1e-05, "max_position_embeddings": CONTEXT,
        "model_type": "gpt_neox", "num_attention_heads": 6, "num_hidden_layers": 3, "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16", "use_parallel_residual": True,
        "vocab_size": VOCABULARY, **more,
    }  # fmt: skip


def qwen2(**more: Any) -> Settings:
    settings = {"model_type": "qwen2", "num_key_value_heads": 2, "max_window_layers": 2, "use_sliding_window": False}
    return llama(**settings, sliding_window=CONTEXT, rope_theta=10000.0, **more)


def as_it_is(weights: Weights) -> Weights:
    return weights


def bare(weights: Weights) -> Weights:
    """GPT-2 without a head, without the prefix of its names, and with its masks."""
    found = {name.removeprefix("transformer."): value for name, value in weights.items() if name != "lm_head.weight"}
    return found | masks("h.{}.attn.", torch.ones(1, 1, CONTEXT, CONTEXT).tril())


def masks(name: str, mask: Tensor) -> Weights:
    both = {"bias": mask, "masked_bias": torch.tensor(-1e4)}
    return {f"{name.format(i)}{part}": value for i in LAYERS for part, value in both.items()}


def neox_buffers(weights: Weights) -> Weights:
    speed = {f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq": torch.ones(1) for i in LAYERS}
    return weights | speed | masks("gpt_neox.layers.{}.attention.", torch.ones(1, 1, 9, 9, dtype=torch.bool))


def speeds(weights: Weights) -> Weights:
    return weights | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in LAYERS}


OLD_LLAMA_3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 16}
PIPELINE = {"text-generation": {"impl": "pipeline.Pipeline", "pt": "AutoModelForCausalLM"}}
CASES: dict[str, tuple[str, Settings, Callable[[Weights], Weights]]] = {
    "gpt2": ("gpt2", gpt2(predict_special_tokens=True, n_special=0, pruned_heads={}, finetuning_task=None), bare),
    "gpt2-tuned": (
        "gpt2", gpt2(gradient_checkpointing=True, n_inner=None, scale_attn_weights=True, reorder_and_upcast_attn=False),
        lambda weights: weights | masks("transformer.h.{}.attn.", torch.ones(1, 1, 9, 9, dtype=torch.bool)),
    ),
    "llama-1": ("llama", llama(pad_token_id=-1, max_sequence_length=CONTEXT), speeds),
    "llama-null": (
        "llama", llama(num_key_value_heads=None, head_dim=None, rope_scaling=None, pretraining_tp=1, mlp_bias=False),
        as_it_is,
    ),
    "llama-linear": ("llama-linear", llama(rope_scaling={"type": "linear", "factor": 4.0}, rope_theta=500.0), as_it_is),
    "llama-3.1": (
        "llama-3",
        llama(num_key_value_heads=2, rope_theta=500.0, rope_scaling={"rope_type": "llama3", **OLD_LLAMA_3},
              eos_token_id=[0, 1]),
        as_it_is,
    ),
    "llama-yarn": (
        "llama-yarn",
        llama(num_key_value_heads=2, head_dim=16, rope_theta=500.0, rope_scaling={
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "finetuned": True,
        }),
        as_it_is,
    ),
    "llama-tied": ("llama-tied", llama(tie_word_embeddings=True), as_it_is),  # with the head in the file
    "llama-tuned": ("llama", llama(model_max_length=32, use_flash_attn=True, _flash_attn_2_enabled=True), as_it_is),
    "qwen2": ("qwen2", qwen2(use_mrope=False), as_it_is),
    "pythia": ("neox", neox(attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1), neox_buffers),
    "pythia-saved-again": (
        "neox", neox(rope_theta=10000, partial_rotary_factor=0.25, rope_scaling=None, custom_pipelines=PIPELINE),
        as_it_is,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_model(case: str) -> None:
    form, settings, change = CASES[case]
    theirs = made(form)
    with torch.no_grad():
        close(gpt_from_huggingface(settings, change(stored(theirs)))(TOKENS), theirs(TOKENS).logits)


@pytest.mark.parametrize("changes", [{"rope_theta": 500.0}, {"partial_rotary_factor": 0.5}])
def test_two_names_that_disagree_are_refused(changes: Settings) -> None:
    """Versions of transformers disagree about which one counts."""
    with pytest.raises(WeightsError, match=rf"unsupported setting {next(iter(changes))}=.*: expected "):
        gpt_from_huggingface(neox(**changes), stored(made("neox")))
