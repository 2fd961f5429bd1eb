"""Random models of every family give the same logits in transformers and here, also after going out and in again."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from normscope.interop.checkpoint import build_model
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.read import gpt_from_huggingface, read_huggingface
from tests.interop.checkpoints import CONTEXT, LINEAR, LLAMA3, SIZES, L, S, made_of, stored
from tests.support import random_tokens

FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3", "Olmo2", "Gemma2", "Gemma3Text", "Phi3", "SmolLM3", "GPTNeoX"]


def random_settings(family: str, draw: random.Random) -> dict[str, Any]:
    """Settings of a small model."""
    heads, head_dim, depth = draw.choice([2, 4, 6]), draw.choice([4, 8, 12]), draw.choice([1, 2, 5])
    rope: dict[str, Any] = draw.choice(
        [{"rope_type": "default", "rope_theta": draw.choice([50.0, 1e4])}, LINEAR, LLAMA3]
    )
    has_head_dim = family in ("Llama", "Mistral", "Qwen3", "Gemma2", "Gemma3Text")
    settings: dict[str, Any] = {
        **SIZES, "num_hidden_layers": depth, "num_attention_heads": heads,
        "hidden_size": heads * draw.choice([4, 8, 12]) if has_head_dim else heads * head_dim,
        "intermediate_size": draw.choice([20, 33]),
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": family not in ("Mistral", "Qwen2", "Phi3") and draw.random() < 0.5,
    }  # fmt: skip
    if has_head_dim:
        settings["head_dim"] = head_dim
    if family != "GPTNeoX":
        settings["num_key_value_heads"] = draw.choice([1, 2, heads])
    if family in ("Phi3", "GPTNeoX"):
        rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": draw.choice([0.5, 1.0])}
    if family == "GPTNeoX":
        settings["use_parallel_residual"] = draw.random() < 0.5
    if family in ("Mistral", "Phi3"):
        settings["sliding_window"] = draw.choice([None, 1, 3, 100])
    if family in ("Qwen2", "Qwen3", "SmolLM3"):
        settings |= {"use_sliding_window": draw.random() < 0.7, "sliding_window": draw.choice([2, 5])}
    if family in ("Qwen2", "Qwen3"):
        settings["max_window_layers"] = draw.choice([0, 1, 3])
    if family == "SmolLM3":
        settings["no_rope_layers"] = [draw.choice([0, 1]) for _ in range(depth)]
    if family in ("Llama", "SmolLM3"):
        settings["mlp_bias"] = draw.random() < 0.5
    if family.startswith("Gemma"):
        settings |= {
            "layer_types": [draw.choice([S, L]) for _ in range(depth)], "sliding_window": draw.choice([2, 5]),
            "query_pre_attn_scalar": draw.choice([head_dim, 5]), "final_logit_softcapping": draw.choice([None, 9.0]),
        }  # fmt: skip
    if family == "Gemma2":
        settings["attn_logit_softcapping"] = draw.choice([None, 2.0])
    if family == "Gemma3Text":
        rope = {S: {"rope_type": "default", "rope_theta": 70.0}, L: rope}
    return {**settings, "rope_parameters": rope}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "seed", [seed if seed == 0 else pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(25)]
)
def test_random_models_match(family: str, seed: int, tmp_path: Path) -> None:
    settings = random_settings(family, random.Random(f"{family} {seed}"))
    theirs = made_of(getattr(transformers, f"{family}Config")(**settings))
    ours, tokens = (
        gpt_from_huggingface(theirs.config.to_dict(), stored(theirs)),
        random_tokens(97, 2, CONTEXT, seed=seed),
    )
    table = families()[theirs.config.model_type]
    written = table.to_theirs(ours.config, ours.state_dict())
    save_file({name: tensor.contiguous() for name, tensor in written.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(table.write_config(ours.config)), encoding="utf-8")
    with torch.no_grad():
        wanted = theirs(tokens).logits
        again = AutoModelForCausalLM.from_pretrained(tmp_path)
        for logits in (ours(tokens), again(tokens).logits, build_model(read_huggingface(tmp_path))(tokens)):
            assert (logits - wanted).abs().max() <= 3e-5 * wanted.abs().max(), settings
