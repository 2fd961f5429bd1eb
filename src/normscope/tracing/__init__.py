"""Trace one forward pass of any PyTorch model: module calls, functions, and where each tensor came from."""
