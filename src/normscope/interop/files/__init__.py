"""Readers of files of other tools: safetensors, torch.save, pickles and GGUF.

A file may be damaged or malicious. Sizes are checked before anything is read or allocated, no code of a file is
executed, and a file that cannot be read raises a `NormscopeError` that names it. Tensors are read when looked up.
"""
