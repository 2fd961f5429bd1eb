"""A small Hugging Face folder, as another tool wrote it."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from normscope.data.tokenizers.huggingface import train_bpe


def write_huggingface(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a Llama with a tokenizer of fewer tokens than the model has."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    model.save_pretrained(folder)
    train_bpe(["the cat and the hat, 12 345 cafés\n" * 20], 300).save(folder / "tokenizer.json")
    return folder
