"""Trace one forward pass of any PyTorch model: module calls, torch functions, and the origin of each tensor."""
