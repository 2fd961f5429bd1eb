"""Small models that write, and the slowest way to write: a whole pass for each token, and the definitions of sampling.

The weights are drawn anew and the logits are flat, so that many tokens are about equally likely: whatever rounds in
another way soon chooses another token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import sample_token, uniform
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from tests.support import scramble

VOCABULARY, CONTEXT = 29, 16
LETTERS = CharacterTokenizer.of(["abcdefghijklmnopqrstuvwxyz \n"])
BYTES = ByteTokenizer()
every_preset = pytest.mark.parametrize("name", PRESETS)
FUSED = [name for name in PRESETS if name != "nanochat-2026-07"]
"""Presets that the fused decoder runs."""

# One of each kind: positions learned, rotary and none; windows, grouped queries, QK-norm; and one without a cache.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PRESETS},
    "window": ("nanochat", {"window": 5}),
    "no-positions": ("gpt2", {"positions": "none", "kv_heads": 2}),
    "no-cache": ("llama", {"norm": "instance", "allow_future_leak": True}),
}
every_form = pytest.mark.parametrize("form", FORMS)


def writer(form: str = "llama", dtype: torch.dtype = torch.float64, **overrides: Any) -> GPT:
    name, options = FORMS[form]
    sizes = {"vocab_size": VOCABULARY, "context": CONTEXT, "width": 12, "depth": 2, "heads": 2, "hidden": 20}
    model = GPT(preset(name, **{**sizes, **options, **overrides})).to(dtype)
    scramble(model, scale=0.3)
    return model


def always(vocab_size: int, token: int, or_else: int | None = None) -> GPT:
    """A model that always writes the same token; or, where that is made half as likely, another."""
    model = writer("llama", vocab_size=vocab_size)
    head = model.head
    assert head is not None
    with torch.no_grad():
        head.weight.zero_()
        for parameter in (model.embedding.weight, *model.final_norm.parameters()):
            parameter.fill_(1.0)
        for silent in (module for block in model.blocks for module in (block.attention.out, block.mlp.down)):  # type: ignore[union-attr]
            silent.weight.zero_()  # type: ignore[union-attr, operator]
        head.weight[token] = 1.0
        if or_else is not None:
            head.weight[or_else] = 0.6
    return model


def slow_continuation(
    model: GPT, prompt: Sequence[int], count: int, sampling: GenerationConfig, seed: int = 0, sample: int = 0
) -> list[int]:
    """What a prompt goes on with: the whole window is read for every token, as the definition says."""
    context, tokens = model.config.context, list(prompt)
    begin = max(0, len(tokens) - context)
    for _ in range(count):
        if len(tokens) - begin > context:
            begin = len(tokens) - context // 2
        with torch.no_grad():
            logits = model(torch.tensor([tokens[begin:]]))[0, -1].double().numpy()
        u = uniform(seed, sample, len(tokens))
        tokens.append(sample_token(logits, sampling, u, np.unique(tokens)))
    return tokens[len(prompt) :]
