"""GGUF, the format of llama.cpp: architectures, tensors, quantization, tokenizers."""
