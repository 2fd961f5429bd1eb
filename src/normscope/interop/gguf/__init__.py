"""GGUF, the format of llama.cpp: its architectures, settings and tokenizers."""
