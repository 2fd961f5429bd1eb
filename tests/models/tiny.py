"""Tiny GPT variants that cover every config option."""

from typing import Any

import pytest
import torch

from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import PRESETS, preset
from tests.support import scramble

VOCABULARY, CONTEXT = 31, 10

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PRESETS},
    "value-embeddings": ("llama", {"value_embeddings": True, "kv_heads": 2, "depth": 3}),
    "smear-learned": ("gpt2", {"smear": True, "embedding_norm": True}),
    "mixed-post": ("gpt2", {"embedding_mix": True, "backout": True, "wiring": "post"}),
    "nanochat-window": ("nanochat", {"window": 3}),
    "gpt2-grouped": ("gpt2", {"kv_heads": 2}),
    "llama-window-heads": ("llama", {"window": 4, "head_dim": 6}),
    "gpt2-no-bias": ("gpt2", {"bias": False}),
    "no-positions": ("llama", {"positions": "none"}),
    "post": ("gpt2", {"wiring": "post"}),
    "sandwich": ("llama", {"wiring": "sandwich"}),
    "parallel": ("nanochat", {"wiring": "parallel"}),
    "group-norm": ("llama", {"norm": TEXT_NORMS["group"]}),
    "no-norm": ("gpt2", {"norm": None}),
}
every_form = pytest.mark.parametrize("form", FORMS)
every_preset = pytest.mark.parametrize("name", PRESETS)


def tiny(name: str, **overrides: Any) -> GPTConfig:
    sizes = {"vocab_size": VOCABULARY, "context": CONTEXT, "width": 16, "depth": 2, "heads": 4}
    return preset(name, **{**sizes, **overrides})


def made(form: str, dtype: torch.dtype = torch.float32, scale: float = 0.3, **changes: Any) -> GPT:
    """Build the variant with random weights, so that a zero head hides no bug."""
    name, overrides = FORMS[form]
    model = GPT(tiny(name, **{**overrides, **changes})).to(dtype)
    scramble(model, scale=scale)
    return model
