"""A Hugging Face folder: config, safetensors, tokenizer, generation config and model card."""
