"""Numerical operations: each has a reference implementation in torch and, on the CPU, a fused kernel."""
