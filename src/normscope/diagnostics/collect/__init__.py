"""Collect statistics while a model runs: hooks on modules, functions, gradients and parameters."""
