"""Small models to export, in which every weight matters."""

from typing import Any

import torch

from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.exporting.model_source import ModelSource
from normscope.models.gpt import GPT
from normscope.models.presets import preset

TEXT = "hello world, it's a café. 你好🙂\n\t"
SIZES = {"context": 80, "depth": 2, "width": 32, "heads": 4}


def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "bpe":
        from normscope.data.tokenizers.huggingface import train_bpe

        return train_bpe([TEXT * 3, "the cat and the hat"], vocab_size=300)
    return ByteTokenizer() if kind == "bytes" else CharacterTokenizer.of([TEXT])


def small_source(name: str, tokenizer: str = "characters", **overrides: Any) -> ModelSource:
    """A model with random weights: embeddings so small that eps counts, gains other than one."""
    found = tokenizer_of(tokenizer)
    torch.manual_seed(1)
    model = GPT(preset(name, **{**SIZES, "vocab_size": found.vocab_size, **overrides})).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            scale = 0.02 if weight_name in ("embedding.weight", "position.weight") else 0.2
            weight.copy_(torch.randn_like(weight) * scale + 1.0 * ("norm" in weight_name))
    facts = {"name": "small", "parameters": 1, "step": 3, "steps": 5, "loss": 2.5, "bits_per_byte": None, "floor": None}
    return ModelSource(model, found, facts, "hello")
