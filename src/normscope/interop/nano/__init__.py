"""Checkpoints of nanoGPT and nanochat."""
