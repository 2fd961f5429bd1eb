"""Drawings of blocks and models, made from what a model did when it was run."""
