"""Loops that numba compiles for the CPU, one file an operation. Nothing here knows of autograd or modules."""
