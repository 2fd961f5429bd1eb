"""Small models of transformers with random weights and a tokenizer of their family, as imported models to export."""

from functools import cache
from typing import Any

import tokenizers
import torch

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.exporting.model_source import ModelSource
from normscope.interop.huggingface.read import gpt_from_huggingface
from tests.exporting.library_tokenizers import LIBRARIES
from tests.interop.checkpoints import LINEAR, L, S, made, stored

CONTEXT = 80
WIDE = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
}  # fmt: skip
ALL_ROTARY = {"rope_parameters": {"partial_rotary_factor": 1.0}}
CAPS = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}
GEMMA = {**WIDE, "head_dim": 16, "query_pre_attn_scalar": 16}
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": ("gpt2", "gpt2", {"n_embd": 64, "n_positions": CONTEXT}, "smollm"),
    "llama": ("llama", "llama-grouped", WIDE, "llama3"),
    "llama 3.1": ("llama", "llama-3", WIDE, "llama3"),
    "llama, biases": ("llama", "llama-biases", {**WIDE, "rope_parameters": LINEAR}, "llama3"),
    "mistral, window": ("granite_swa", "mistral", WIDE, "mistral"),
    "qwen2": ("qwen2", "qwen2", WIDE, "qwen2"),
    "qwen3": ("qwen3", "qwen3", WIDE, "qwen2"),
    "olmo2": ("olmo2", "olmo2", WIDE, "olmo2"),
    "gemma2": ("gemma2", "gemma2", {**GEMMA, **CAPS}, "gemma"),
    "gemma2, no window": ("gemma2", "gemma2", {**GEMMA, "layer_types": [L] * 4}, "gemma"),
    "gemma3": ("gemma3", "gemma3", {**GEMMA, "num_hidden_layers": 7}, "gemma"),
    "gemma3, scaled": ("gemma3", "gemma3-linear", {**GEMMA, "layer_types": [S, S, L, S]}, "gemma"),
    "phi3": ("llama", "phi3", WIDE, "phi3"),
    "phi3, part": ("phi3", "phi3-part", WIDE, "phi3"),
    "phi3, window": ("granite_swa", "phi3-window", WIDE, "phi3"),
    "smollm3": ("smollm3", "smollm3", {**WIDE, "no_rope_layer_interval": 4, "num_hidden_layers": 5}, "llama3"),
    "smollm3, other pattern": ("granite_swa", "smollm3", WIDE, "llama3"),
    "smollm3, window": ("granite_swa", "smollm3-window", WIDE, "llama3"),
    "neox": ("gptneox", "neox", WIDE, "gpt_neox"),
    "neox, sequential": ("gptneox", "neox", {**WIDE, "use_parallel_residual": False, **ALL_ROTARY}, "gpt_neox"),
}
"""Architecture, model of transformers, changes of its settings, tokenizer. Windows are of 5 tokens."""


def made_for(family: str) -> tuple[Any, tokenizers.Tokenizer]:
    """A model of transformers with random weights so small that 8-bit activations matter little, and its tokenizer."""
    _, form, changes, tokenizer = FAMILIES[family]
    library = LIBRARIES[tokenizer]()
    theirs = made(form, vocab_size=library.get_vocab_size(), **changes)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(0.5 if parameter.dim() > 1 else 1.0)
    return theirs, library


@cache
def source_of(family: str) -> ModelSource:
    theirs, library = made_for(family)
    model = gpt_from_huggingface(theirs.config.to_dict(), stored(theirs))
    return ModelSource(model, HuggingFaceTokenizer(library), {"name": f"my-{family}"})
