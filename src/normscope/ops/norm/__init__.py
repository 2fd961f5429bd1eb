"""Normalization: the reference, the fused row and channel norms, and torch's own functions."""
