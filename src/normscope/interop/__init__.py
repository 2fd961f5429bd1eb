"""Hugging Face checkpoints, and fused norms for existing models."""
